"""``HashedTensors``: one pass over a model that hands out tensors and hashes every byte of every file.

What a consumer gets is the very buffer that went into the hash, so the digest vouches for the weights
that were loaded, whatever happens to the file meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator

from rase.errors import Cancelled
from rase.gguf.formats import TensorInfo
from rase.gguf.reader import GgufFile, Shard

__all__ = ["PIECE", "HashedTensors"]

PIECE = (
    2**20
)  # bytes between two looks at `cancelled`; small enough to be hashed out of the processor's cache


class HashedTensors:
    """A weight source over an open ``GgufFile``; ``stream`` may run once.

    ``progress(done, total)`` is called in bytes over all shards; ``cancelled()`` is asked before each piece
    of 1 MiB and makes ``stream`` raise ``Cancelled`` when it says True.
    """

    def __init__(
        self,
        file: GgufFile,
        progress: Callable[[int, int], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.file = file
        self.tensors = file.tensors
        self._progress, self._cancelled = progress, cancelled
        self._total = sum(shard.size for shard in file.shards)
        self._done = 0
        self._digests: list[str] = []
        self._started = False

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each shard in hex; ``RuntimeError`` before ``stream`` is exhausted."""
        if len(self._digests) != len(self.file.shards):
            raise RuntimeError("the digests are complete once stream() is exhausted")
        return tuple(self._digests)

    def stream(self, wanted: Collection[str]) -> Iterator[tuple[TensorInfo, memoryview]]:
        """Yield each tensor of ``wanted`` once, in file order, with its bytes (read-only).

        The buffer is reused: it holds until the next step of the iteration. Raises ``CorruptModelFile`` for
        a name that the model lacks and when a file shrinks or changes meanwhile, ``Cancelled`` as said above.
        """
        names = set(wanted)
        absent = sorted(names - self.tensors.keys())
        if absent:
            raise self.file.shards[0].file.corrupt(
                f"it lacks tensor '{absent[0]}'", tensor=absent[0], missing=absent
            )
        if self._started:
            raise RuntimeError("stream() may run once: the digests belong to one pass")
        self._started = True
        by_shard: list[list[TensorInfo]] = [[] for _ in self.file.shards]
        for info in self.tensors.values():
            if info.name in names:
                by_shard[info.shard].append(info)
        buffer = _Buffer()
        for shard, infos in zip(self.file.shards, by_shard, strict=True):
            yield from self._shard(shard, infos, buffer)

    def _shard(
        self, shard: Shard, infos: list[TensorInfo], buffer: _Buffer
    ) -> Iterator[tuple[TensorInfo, memoryview]]:
        digest = hashlib.sha256(shard.header)
        self._advance(len(shard.header))
        position = len(shard.header)
        for info in infos:
            self._skip(shard, digest, position, info.offset, buffer)
            view = buffer.view(info.nbytes)
            self._read(shard, digest, info.offset, view, f"tensor '{info.name}'")
            yield info, view.toreadonly()
            position = info.offset + info.nbytes
        self._skip(shard, digest, position, shard.size, buffer)
        shard.file.check_unchanged()
        self._digests.append(digest.hexdigest())

    def _skip(self, shard: Shard, digest: hashlib._Hash, start: int, end: int, buffer: _Buffer) -> None:
        """Hash the bytes between two wanted tensors."""
        while start < end:
            length = min(PIECE, end - start)
            self._read(shard, digest, start, buffer.view(length), "data between the tensors that are loaded")
            start += length

    def _read(self, shard: Shard, digest: hashlib._Hash, offset: int, view: memoryview, what: str) -> None:
        """Fill ``view`` and hash it piece by piece, each while it is still in the cache of the processor."""
        for start in range(0, len(view), PIECE):
            if self._cancelled is not None and self._cancelled():
                raise Cancelled("loading was cancelled", done=self._done, total=self._total)
            piece = view[start : start + PIECE]
            shard.file.read_into(piece, offset + start, what)
            digest.update(piece)
            self._advance(len(piece))

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Buffer:
    """Memory for one tensor at a time: replaced when a larger one comes, never resized under a reader."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def view(self, length: int) -> memoryview:
        if length > len(self._memory):
            import numpy as np

            self._memory = np.empty(length, dtype=np.uint8).data  # no time spent on zeros
        return self._memory[:length]
