"""``CheckpointModel``: a folder in the layout of transformers as a ``ModelFile``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from rase.checkpoint.arrange import Part
from rase.checkpoint.config import Config, as_stored, read_metadata
from rase.checkpoint.mapping import Checkpoint
from rase.checkpoint.rope import rope_factors
from rase.checkpoint.tensors import Arranged, arrange
from rase.checkpoint.text import text_metadata
from rase.errors import UnsupportedFormat
from rase.gguf.formats import TensorInfo, format_named
from rase.gguf.pipeline import Take
from rase.gguf.stream import MAX_THREADS, HashedTensors
from rase.safetensors.folder import CONFIG, SafetensorsFolder

__all__ = ["CheckpointModel", "folder_config"]

# Of "quantization_config": how files of AutoAWQ are (W4A16)
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def folder_config(folder: SafetensorsFolder) -> Config:
    """config.json of a folder, or its text part where the model sees images, too.

    ``architectures`` stays that of the whole.
    """
    whole = Config(folder.document(CONFIG) or {}, folder.file(CONFIG))
    text = whole.table("text_config")
    return whole.inside({**whole.values, **text, "architectures": whole.get("architectures")})


class CheckpointModel:
    """An open folder, told in GGUF's words as ``checkpoint`` says. Closing it closes the folder.

    Raises ``CorruptModelFile``, ``UnsupportedArchitecture`` and ``UnsupportedFormat``.
    """

    format = "safetensors"
    alignment = 32

    def __init__(self, folder: SafetensorsFolder, checkpoint: Checkpoint, architecture: str) -> None:
        config = folder_config(folder)
        config = config.inside({**checkpoint.defaults, **config.values})
        _refuse_quantized(config)
        self.folder, self.shards = folder, folder.shards
        self.location = os.fspath(folder.path)
        self.metadata: dict[str, Any] = read_metadata(config, checkpoint, architecture)
        constants, more = rope_factors(config)
        self.metadata |= {f"{architecture}.{key}": as_stored(value) for key, value in more.items()}
        self.metadata |= text_metadata(folder, config)
        self.types = {key: _type(value) for key, value in self.metadata.items()}
        self.tokenizer_json = folder.documents.get("tokenizer.json")
        self._arranged = arrange(folder.tensors, checkpoint, config)
        self.tensors = {name: one.info() for name, one in self._arranged.items()}
        parts = [part for one in self._arranged.values() for part in one.parts]
        self.working_bytes = MAX_THREADS * max((part.working_bytes for part in parts), default=0)
        for name, values in constants.items():
            self._arranged[name] = Arranged(name, constant=values.tobytes())
            self.tensors[name] = TensorInfo(name, values.shape, format_named("F32"), 0, 0, values.nbytes)

    def source(
        self,
        progress: Callable[[int, int], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> ArrangedTensors:
        return ArrangedTensors(self, HashedTensors(self.folder, progress, cancelled))

    def rows(self, info: TensorInfo, size: int) -> Iterator[bytes]:
        one = self._arranged[info.name]
        if one.constant is not None:
            yield one.constant
        for part in one.parts:
            yield from self._pieces(part, size)

    def _pieces(self, part: Part, size: int) -> Iterator[bytes]:
        (stored,) = part.stored
        row = part.format.row_bytes(part.shape[-1])
        step = max(size // part.grain(row), 1) * part.grain(row)
        file, given = self.shards[stored.shard].file, []
        for start in range(0, stored.nbytes, step):
            data = file.read(
                stored.offset + start, min(step, stored.nbytes - start), f"tensor '{stored.name}'"
            )
            part.take(stored, start, memoryview(data), lambda _, piece: given.append(bytes(piece)))
            yield given.pop()

    def close(self) -> None:
        self.folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class _Route:
    """Where slices of a stored tensor go."""

    info: TensorInfo
    part: Part
    start: int  # of the part in the tensor


class ArrangedTensors:
    """A weight source over another: it takes what is stored and gives what the graph reads."""

    def __init__(self, model: CheckpointModel, stored: HashedTensors) -> None:
        self.tensors: Mapping[str, TensorInfo] = model.tensors
        self._model, self._stored = model, stored

    @property
    def digests(self) -> tuple[str, ...]:
        return self._stored.digests

    def deliver(self, grains: Mapping[str, int], take: Take, threads: int = 1) -> None:
        """As ``HashedTensors.deliver``; slices of one tensor come in no certain order."""
        routes: dict[str, _Route] = {}
        stored_grains: dict[str, int] = {}
        for name in sorted(grains):
            one, info = self._model._arranged.get(name), self.tensors.get(name)
            if one is None or info is None:
                raise self._model.shards[0].file.corrupt(f"the folder lacks tensor '{name}'", missing=[name])
            if one.constant is not None:
                take(info, 0, memoryview(one.constant))
            start = 0
            for part in one.parts:
                for stored in part.stored:
                    routes[stored.name] = _Route(info, part, start)
                    stored_grains[stored.name] = min(part.grain(grains[name]), stored.nbytes)
                start += part.nbytes

        def passed(stored: TensorInfo, start: int, data: memoryview) -> None:
            way = routes[stored.name]
            way.part.take(stored, start, data, lambda at, part: take(way.info, way.start + at, part))

        self._stored.deliver(stored_grains, passed, threads)


def _refuse_quantized(config: Config) -> None:
    """Raise ``UnsupportedFormat`` for weights that are quantized in another way than AWQ's usual one."""
    table = config.table("quantization_config")
    said = {key: str(table.get(key, value)).lower() for key, value in _AWQ.items()}
    said["quant_method"] = str(table.get("quant_method")).lower()
    if table and said != {key: str(value).lower() for key, value in _AWQ.items()}:
        raise UnsupportedFormat(
            f"'{config.file.path}': the weights are quantized in a way that rase does not run",
            expected=", ".join(f"{key} {value}" for key, value in _AWQ.items()),
            found=", ".join(f"{key} {value:.40}" for key, value in said.items()),
            hint="Choose the float version of the model, or a GGUF file of it.",
        )  # fmt: skip


def _type(value: Any) -> str:
    """The GGUF type of a value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "uint32"
    if isinstance(value, float):
        return "float32"
    return "string" if isinstance(value, str) else f"array of {value.dtype}"
