"""Loading: a model file becomes a compiled program, planned from metadata and hashed while it is read.

Order matters: the architecture, every shape and the memory that the model will take are checked before a byte
of tensor data is read, and what is compiled is the very buffer that was hashed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rase import env
from rase.device import RuntimeDevice
from rase.errors import InsufficientMemory, InvalidSetting
from rase.memory import available_memory

if TYPE_CHECKING:
    from rase.backends.base import Backend, CompileOptions, Program
    from rase.engine.kv_cache import PagePool
    from rase.gguf.modelfile import ModelFile
    from rase.graph.ops import Graph
    from rase.models import Architecture

__all__ = [
    "Kind", "LoadedProgram", "Progress", "close_with", "load_program", "plan_memory", "usable_backend",
]  # fmt: skip

Kind = Literal["generator", "embedding"]  # as in a manifest
Progress = Callable[[int, int], object]  # bytes done, bytes in all
CONTEXTS = 4  # whole contexts that the KV cache holds where there is memory: several sequences, and prefixes
KV_SHARE = 0.9  # of the memory that is left after weights and scratch, at most this part becomes KV cache


@dataclass
class LoadedProgram:
    """A compiled model file: what runs, where its pages come from, and what the file said."""

    program: Program
    pool: PagePool
    architecture: Architecture
    metadata: Mapping[str, Any]
    tokenizer_json: bytes | None  # one that is part of the model
    format: str
    location: str  # absolute: the first file, or the folder of the files
    paths: tuple[str, ...]  # of the files
    sizes: tuple[int, ...]  # bytes of each
    digests: tuple[str, ...]  # SHA-256 of each, of the bytes that were read
    kind: Kind = "generator"


def load_program(
    path: str | os.PathLike[str],
    device: RuntimeDevice,
    *,
    architecture: str | None = None,
    context_length: int | None = None,
    kind: Kind | None = "generator",
    kv: str | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> LoadedProgram:
    """Open, check, plan and compile the model ``path``: a GGUF file (any shard), or a safetensors folder.

    ``architecture`` is a registered name or alias; without it the file's own ``general.architecture`` counts.
    ``context_length`` bounds the context below the file's own; ``kind`` None is what the file is for. ``kv``
    is how the KV cache of a generator holds keys and values, ``"f16"`` or ``"q8_0"``, None what RASE_KV says;
    an embedding model has no cache to make smaller, and always takes float16.
    Raises what the reader, the architecture and the backend raise, ``ManifestError`` when the file is of
    another architecture than ``architecture``, ``InvalidSetting`` for another ``kv``, ``InsufficientMemory``
    before any tensor is read, and ``Cancelled``.
    """
    from rase import models
    from rase.backends.base import CompileOptions
    from rase.engine.kv_cache import PagePool
    from rase.models.files import open_model

    backend = usable_backend(device)
    options = CompileOptions(
        prefill=env.get("RASE_PREFILL"), numerics=env.get("RASE_NUMERICS"),
        max_batch_tokens=env.get("RASE_MAX_BATCH_TOKENS"), kv=kv or env.get("RASE_KV"),
    )  # fmt: skip
    with open_model(path) as file:
        kind = models.kind_of(file.metadata) if kind is None else kind
        context_length = _bounded(file.metadata, context_length)
        graph = models.build(file.metadata, file.tensors, architecture, context_length, kind)
        if kind == "embedding":  # vectors are kept, and met by others' vectors
            options = replace(options, kv="f16")
            if options.prefill == "auto":
                portable = "portable" in backend.numerics
                options = (
                    replace(options, numerics="portable") if portable else replace(options, prefill="f32")
                )
        if graph.whole_input:  # the longest input is one step
            options = replace(options, max_batch_tokens=max(options.max_batch_tokens, graph.context_length))
        budget = plan_memory(backend, graph, file, options)
        weights = file.source(progress, cancelled)
        program = backend.compile(graph, weights, options)
        try:
            named = models.resolve(architecture or graph.architecture)
            return LoadedProgram(
                program, PagePool(program, budget), named, file.metadata, file.tokenizer_json,
                file.format, file.location,
                tuple(os.fspath(shard.path) for shard in file.shards),
                tuple(shard.size for shard in file.shards), weights.digests, kind)  # fmt: skip
        except BaseException:
            program.close()
            raise


def usable_backend(device: RuntimeDevice) -> Backend:
    """The backend of ``device``, if it is there and can do what is set.

    Raises ``BackendUnavailable`` and ``InvalidSetting``.
    """
    backend = device.backend()
    if not backend.parallel and (size := env.get("RASE_TENSOR_PARALLEL_SIZE")) != 1:
        raise InvalidSetting(
            f"tensor_parallel_size on device '{device.name}'", expected="1: one device has all of a model",
            found=str(size), hint="Unset RASE_TENSOR_PARALLEL_SIZE, or use device 'cuda'.",
        )  # fmt: skip
    return backend


def _bounded(metadata: Mapping[str, Any], context_length: int | None) -> int | None:
    """The context that a model is loaded with: the manifest's, else the file's, within RASE_MAX_MODEL_LEN."""
    most = env.get("RASE_MAX_MODEL_LEN")
    own = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    wanted = own if context_length is None else context_length
    if most is None or not isinstance(own, int) or not isinstance(wanted, int) or wanted > own:
        return context_length  # what is wrong with it is for the architecture to say
    return min(wanted, int(most))


def plan_memory(backend: Backend, graph: Graph, file: ModelFile, options: CompileOptions) -> int:
    """Return the KV budget in bytes, or raise ``InsufficientMemory`` when weights and one page do not fit.

    The cache grows with use: a long context costs nothing at load. Its budget is ``RASE_NUM_BLOCKS`` pages,
    else ``RASE_KV_CACHE``, else ``CONTEXTS`` whole contexts within half of the memory that loading leaves;
    one context may take up to ``KV_SHARE`` of it.
    """
    from rase.gguf.stream import buffer_bytes

    estimate = backend.estimate(graph, file.tensors, options)
    own = backend.free_memory()
    available = available_memory() if own is None else own
    reading = buffer_bytes(file, estimate.grain, estimate.threads)  # what is hashed and compiled
    needed = estimate.weights + estimate.scratch + reading + file.working_bytes + estimate.page
    if needed > available:
        name = os.fspath(file.shards[0].path)
        raise InsufficientMemory(f"model '{name}'", needed=needed, available=available)
    left = available - needed + estimate.page
    whole = estimate.page * -(-graph.context_length // estimate.page_tokens)
    stated = env.get("RASE_NUM_BLOCKS") * estimate.page or env.get("RASE_KV_CACHE")
    wanted = stated or max(whole, min(CONTEXTS * whole, left // 2))
    return max(estimate.page, min(wanted, int(left * KV_SHARE)))


def close_with(user: object, program: Program) -> None:
    """Close ``program`` when ``user`` dies, but never in a forked child: its threads stayed in the parent."""
    owner = os.getpid()

    def close() -> None:
        if os.getpid() == owner:
            program.close()

    weakref.finalize(user, close).atexit = False
