"""``HashedTensors``: one pass over a model that hands out tensors and hashes every byte of every file.

What a consumer gets is the very buffer that went into the hash, so the digest vouches for the weights
that were loaded, whatever happens to the file meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

from rase.errors import Cancelled
from rase.gguf.formats import TensorInfo
from rase.gguf.modelfile import StoredTensors
from rase.gguf.pipeline import Pipeline, Slice, Take
from rase.gguf.reader import Shard

__all__ = ["MAX_THREADS", "SLICE", "HashedTensors", "buffer_bytes"]

SLICE = 4 * 2**20
"""Bytes of a slice, about: each costs some turns of the GIL, which a busy host gives away slowly."""
MAX_THREADS = 4  # one hashes at about 2 GB/s; more than three others cannot run ahead of it


class HashedTensors:
    """A weight source over open files; ``deliver`` may run once.

    ``progress(done, total)`` is called in bytes over all shards, ``cancelled()`` makes ``deliver`` raise
    ``Cancelled`` when it says True; both many times a second, in the thread that called ``deliver``.
    """

    def __init__(
        self,
        file: StoredTensors,
        progress: Callable[[int, int], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.file = file
        self.tensors = file.tensors
        self._progress, self._cancelled = progress, cancelled
        self._total = sum(shard.size for shard in file.shards)
        self._digests: tuple[str, ...] = ()
        self._started = False

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each shard in hex; ``RuntimeError`` before ``deliver`` has ended."""
        if not self._digests:
            raise RuntimeError("the digests are complete once deliver() has ended")
        return self._digests

    def deliver(self, grains: Mapping[str, int], take: Take, threads: int = 1) -> None:
        """Call ``take(info, start, data)`` for slices that make up each tensor named in ``grains``.

        ``grains[name]`` bytes are never cut: a slice begins at a multiple of it, and holds several where they
        are small. With several ``threads`` calls overlap and come in any order; with one, in file order.
        Raises ``CorruptModelFile`` for a name that the model lacks and when a file shrinks or changes
        meanwhile, ``Cancelled`` as said above, and what ``take`` raises.
        """
        absent = sorted(grains.keys() - self.tensors.keys())
        if absent:
            raise self.file.shards[0].file.corrupt(
                f"it lacks tensor '{absent[0]}'", tensor=absent[0], missing=absent
            )
        if self._started:
            raise RuntimeError("deliver() may run once: the digests belong to one pass")
        self._started = True
        digests = [hashlib.sha256(shard.header) for shard in self.file.shards]
        headers = sum(len(shard.header) for shard in self.file.shards)
        slices: list[Slice] = []
        for index, (shard, digest) in enumerate(zip(self.file.shards, digests, strict=True)):
            infos = [info for info in self.tensors.values() if info.shard == index and info.name in grains]
            slices += _cut(shard, digest, infos, grains)
        pipeline = Pipeline(slices, take, min(max(threads, 1), MAX_THREADS))
        reported = -1

        def report() -> int:
            nonlocal reported
            done = headers + pipeline.hashed
            if self._progress is not None and done != reported:
                self._progress(done, self._total)
            reported = done
            return done

        def tick() -> None:
            done = report()
            if self._cancelled is not None and self._cancelled():
                raise Cancelled("loading was cancelled", done=done, total=self._total)

        pipeline.run(tick)
        report()
        for shard in self.file.shards:
            shard.file.check_unchanged()
        self._digests = tuple(digest.hexdigest() for digest in digests)


def buffer_bytes(file: StoredTensors, grain: int, threads: int) -> int:
    """Most bytes that ``deliver`` holds at a time when the largest grain is ``grain``."""
    largest = min(SLICE, max(shard.size for shard in file.shards))
    return min(max(threads, 1), MAX_THREADS) * max(grain, largest)


def _cut(
    shard: Shard, digest: hashlib._Hash, infos: list[TensorInfo], grains: Mapping[str, int]
) -> Iterator[Slice]:
    """All bytes of a shard after its header, in file order."""

    def between(start: int, end: int) -> Iterator[Slice]:
        for offset in range(start, end, SLICE):
            yield Slice(shard.file, digest, offset, min(SLICE, end - offset))

    position = len(shard.header)
    for info in infos:
        yield from between(position, info.offset)
        step = max(SLICE // grains[info.name], 1) * grains[info.name]
        for start in range(0, info.nbytes, step):
            length = min(step, info.nbytes - start)
            yield Slice(shard.file, digest, info.offset + start, length, info, start)
        position = info.offset + info.nbytes
    yield from between(position, shard.size)
