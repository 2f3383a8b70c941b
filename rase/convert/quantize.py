"""``quantize_gguf``: a float model to one of the quantized mixes, tensor by tensor, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rase._kernels import quantize as kernel
from rase.convert.mixes import FLOATS, MIXES, Mix, Model, choose_format
from rase.convert.vocabulary import embed
from rase.errors import Cancelled, CorruptModelFile, InvalidRequest, UnsupportedFormat
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import Format, TensorInfo
from rase.gguf.modelfile import ModelFile
from rase.gguf.writer import build_header
from rase.models.files import open_model
from rase.registry.files import Progress, store_errors, sync_folder, temporary_name, write_new

__all__ = ["quantize_gguf"]

PIECE = 2**21  # weights that are in memory at once, about
QUANTIZATION_VERSION = 2  # of the block layouts, since May 2023


def quantize_gguf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str = "Q4_K_M",
    *,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> int:
    """Write ``source``, a model of F32, F16 or BF16 weights, to the GGUF file ``target``; return its size.

    ``source`` is a GGUF file or a folder of safetensors files; the tokenizer.json of a folder goes into the
    file where GGUF can say it (``rase.convert.vocabulary``).

    ``mix`` is one of Q4_0, Q4_K_M, Q5_K_M, Q6_K and Q8_0, with llama.cpp's choice of a format per tensor.
    ``target`` appears whole or not at all. ``progress(done, total)`` counts bytes of the source's tensors;
    ``cancelled()`` true raises ``Cancelled``. The bytes do not depend on ``threads`` (default: all that this
    process may use).

    Raises ``InvalidRequest`` (unknown mix, target exists or is the source), ``UnsupportedFormat`` (no float
    model), ``CorruptModelFile`` (a NaN or an infinity among the weights), what ``open_model`` raises, and
    ``StoreError`` where the target cannot be written.
    """
    if mix not in MIXES:
        raise InvalidRequest(f"the mix {mix!r}", expected=" or ".join(MIXES), hint="Name one of those.")
    path = Path(target)
    if path.exists() and (not overwrite or _same_file(source, path)):
        hint = "Choose another name" + ("." if overwrite else ", or allow it: overwrite=True, --overwrite.")
        raise InvalidRequest(f"the target '{path}' is there already", found="a file", hint=hint)
    workers = threads if threads is not None else len(os.sched_getaffinity(0))
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= 1024:
        raise InvalidRequest("threads", expected="a number from 1 to 1024", found=repr(threads))
    with open_model(source) as file:
        _check(file)
        run = _Run(file, MIXES[mix], workers, progress, cancelled)
        temporary = temporary_name(path)
        with store_errors(f"'{path}' could not be written"):
            write_new(temporary, run.chunks())
            try:
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync_folder(path.absolute().parent)
            return path.stat().st_size


def _same_file(source: str | os.PathLike[str], target: Path) -> bool:
    try:
        return os.path.samefile(source, target)
    except OSError:
        return False


def _check(file: ModelFile) -> None:
    quantized = [info for info in file.tensors.values() if info.format.name not in FLOATS]
    if quantized:
        info = quantized[0]
        raise UnsupportedFormat(
            f"tensor '{info.name}' of '{file.location}' is quantized already",
            expected="weights in " + ", ".join(FLOATS), found=info.format.name,
            hint="Start from the model's float file: quantizing twice loses twice.", tensor=info.name,
        )  # fmt: skip


class _Run:
    """One conversion: the new header, then the data of each tensor in pieces."""

    def __init__(
        self, file: ModelFile, mix: Mix, threads: int, progress: Progress | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:  # fmt: skip
        self.file, self.mix, self.threads = file, mix, threads
        self.progress, self.cancelled = progress, cancelled
        model = Model.of(file.metadata, file.tensors)
        self.plan = [(info, choose_format(info, mix, model)) for info in file.tensors.values()]
        embedding = file.tensors.get("token_embd.weight")
        self.rows = embedding.shape[0] if embedding is not None else 0
        self.total = sum(info.nbytes for info, _ in self.plan)
        self.done = 0

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes of the new file, in order."""
        yield build_header(*self._metadata(), self._table(), self.file.alignment)
        for info, form in self.plan:
            yield from self._copied(info) if form is info.format else self._converted(info, form)
            yield bytes(-form.tensor_bytes(info.shape) % self.file.alignment)
        for shard in self.file.shards:
            shard.file.check_unchanged()

    def _table(self) -> list[tuple[str, tuple[int, ...], Format]]:
        return [(info.name, info.shape, form) for info, form in self.plan]

    def _metadata(self) -> tuple[dict[str, Any], dict[str, str]]:
        values = {key: value for key, value in self.file.metadata.items() if not key.startswith("split.")}
        types = dict(self.file.types)
        if self.file.tokenizer_json is not None:
            embed(self.file.tokenizer_json, self.rows, values, types)
        for key, value in (
            ("general.file_type", self.mix.file_type), ("general.quantization_version", QUANTIZATION_VERSION)
        ):  # fmt: skip
            values[key], types[key] = value, "uint32"
        return values, types

    def _copied(self, info: TensorInfo) -> Iterator[bytes]:
        for raw in self.file.rows(info, 4 * PIECE):
            self._count(len(raw))
            yield raw

    def _converted(self, info: TensorInfo, form: Format) -> Iterator[memoryview]:
        cols = info.shape[-1]
        width = info.format.row_bytes(cols)
        for raw in self.file.rows(info, PIECE * info.format.block_bytes):
            self._count(len(raw))
            count = len(raw) // width
            values = np.ascontiguousarray(dequantize(info.format, raw, (count, cols))).reshape(-1)
            yield self._quantized(info, form, values, count * form.row_bytes(cols))

    def _quantized(self, info: TensorInfo, form: Format, values: Any, nbytes: int) -> memoryview:
        if form.name in ("F16", "F32"):
            finite = bool(np.isfinite(values).all())
            out = values.astype("<f2" if form.name == "F16" else "<f4").view(np.uint8)
        else:
            out = np.empty(nbytes, dtype=np.uint8)
            finite = kernel.quantize(form.ggml_id, values, out, self.threads)
        if not finite:
            raise CorruptModelFile(
                f"tensor '{info.name}' of '{self.file.location}' holds a NaN or an infinity",
                expected="finite weights", hint="Convert or download the model again.", tensor=info.name,
            )  # fmt: skip
        return memoryview(out)

    def _count(self, length: int) -> None:
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("quantizing was cancelled", done=self.done, total=self.total)
        self.done += length
        if self.progress is not None:
            self.progress(self.done, self.total)
