"""``GgufFile``: a model in one or more GGUF files, parsed and checked before anything is loaded.

The rule for strings: all of them are UTF-8, and one that is not makes the file corrupt. The rule for
bounds: nothing is allocated for a count, length, offset or shape that the size of the file contradicts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rase.gguf.files import InputFile
from rase.gguf.formats import TensorInfo
from rase.gguf.header import Header, read_header
from rase.gguf.split import shard_paths

if TYPE_CHECKING:
    from rase.gguf.stream import HashedTensors

__all__ = ["GgufFile", "Shard"]

OF_ONE_SHARD = ("split.no", "general.alignment")  # keys that each shard has for itself


@dataclass(frozen=True)
class Shard:
    """One file of the model; ``header`` is every byte before its tensor data."""

    path: Path
    size: int
    header: bytes
    file: InputFile  # open as long as the model is


class GgufFile:
    """An open model. Use it as a context manager, or call ``close``.

    ``metadata`` holds ``str``, ``int``, ``float``, ``bool``, ``list[str]`` and read-only NumPy arrays (of
    numbers or booleans); ``types`` the GGUF type of each, such as "uint32" or "array of string".
    ``tensors`` is in file order: by shard, then by offset. Reading is safe from several threads.
    """

    format = "gguf"
    tokenizer_json: bytes | None = None  # the tokenizer is in the metadata
    working_bytes = 0
    location: str
    metadata: dict[str, Any]
    types: dict[str, str]
    tensors: dict[str, TensorInfo]
    shards: tuple[Shard, ...]
    version: int
    alignment: int  # of the first shard

    def __init__(self, shards: list[Shard], headers: list[Header]) -> None:
        self.shards = tuple(shards)
        self.location = os.path.abspath(shards[0].path)
        self.version, self.alignment = headers[0].version, headers[0].alignment
        self.metadata, self.types = _merge_metadata(shards, headers)
        self.tensors = _merge_tensors(shards, headers)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the model that ``path``, its only file or any of its shards, belongs to.

        Raises ``ModelFileNotFound`` (absent, or a shard is), ``UnsupportedFormat`` (no GGUF, another version
        or byte order, a tensor type that rase does not run) or ``CorruptModelFile`` (cut, contradictory).
        """
        given = InputFile(path)
        opened = [given]
        try:
            header = read_header(given)
            paths = shard_paths(given, header.metadata)
            shards: list[Shard] = []
            headers: list[Header] = []
            for shard_path in paths:
                if shard_path == given.path:
                    file, own = given, header
                else:
                    opened.append(file := InputFile(shard_path))
                    own = read_header(file)
                    shard_paths(file, own.metadata)  # its name and its metadata must agree, too
                shards.append(Shard(shard_path, file.size, own.raw, file))
                headers.append(own)
            return cls(shards, headers)
        except BaseException:
            for file in opened:
                file.close()
            raise

    def read(self, info: TensorInfo) -> bytes:
        """The bytes of one tensor; ``CorruptModelFile`` when the file has shrunk since it was opened."""
        return self.shards[info.shard].file.read(info.offset, info.nbytes, f"tensor '{info.name}'")

    def rows(self, info: TensorInfo, size: int) -> Iterator[bytes]:
        """The bytes of one tensor in pieces of whole rows, about ``size`` bytes each; raises as ``read``."""
        row = info.format.row_bytes(info.shape[-1])
        step = max(size // row, 1) * row
        for start in range(0, info.nbytes, step):
            length = min(step, info.nbytes - start)
            yield self.shards[info.shard].file.read(info.offset + start, length, f"tensor '{info.name}'")

    def source(
        self,
        progress: Callable[[int, int], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> HashedTensors:
        """One pass over all files that hands out tensors and hashes every byte."""
        from rase.gguf.stream import HashedTensors

        return HashedTensors(self, progress, cancelled)

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        for shard in self.shards:
            shard.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FOREIGN_SHARD = "The shards belong to different models: download all of them again."


def _merge_metadata(shards: list[Shard], headers: list[Header]) -> tuple[dict[str, Any], dict[str, str]]:
    """The first shard carries the metadata; what a later one adds or repeats must not contradict it."""
    values, types = dict(headers[0].metadata), dict(headers[0].types)
    for shard, header in zip(shards[1:], headers[1:], strict=True):
        for key, value in header.metadata.items():
            if key in OF_ONE_SHARD:
                continue
            if key in values and not _same(values[key], value):
                what = f"metadata key '{key}' differs from that of the first shard"
                raise shard.file.corrupt(what, hint=FOREIGN_SHARD, key=key)
            values.setdefault(key, value)
            types.setdefault(key, header.types[key])
    return values, types


def _merge_tensors(shards: list[Shard], headers: list[Header]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index, (shard, header) in enumerate(zip(shards, headers, strict=True)):
        for info in header.tensors:
            if info.name in tensors:
                what = f"tensor '{info.name}' is in an earlier shard, too"
                raise shard.file.corrupt(what, hint=FOREIGN_SHARD, tensor=info.name)
            tensors[info.name] = replace(info, shard=index)
    declared = headers[0].metadata.get("split.tensors.count", len(tensors))
    if len(shards) > 1 and declared != len(tensors):
        raise shards[0].file.corrupt(
            "its shards do not make the whole model", expected=f"{declared} tensors", found=len(tensors)
        )
    return tensors


def _same(first: Any, second: Any) -> bool:
    if hasattr(first, "tobytes") and hasattr(second, "tobytes"):
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    return type(first) is type(second) and bool(first == second)
