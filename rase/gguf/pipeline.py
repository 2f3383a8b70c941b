"""A bounded pipeline over a model's files: slices are read, hashed in order and handed to a consumer.

The digest of a file is one chain. Each thread takes a slice through all three stages in a buffer of its own,
which stays in its core's cache, and the turn to hash passes from slice to slice: while one thread hashes, the
others consume the slice before and read the one after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hashlib

    from rase.gguf.files import InputFile
    from rase.gguf.formats import TensorInfo

__all__ = ["Pipeline", "Slice", "Take"]

Take = Callable[["TensorInfo", int, memoryview], object]
"""Gets a tensor, an offset into its bytes and the bytes from there on (read-only, valid until it returns)."""

_PATIENCE = 0.05  # seconds after which a waiting thread looks whether all was called off


@dataclass(frozen=True, slots=True)
class Slice:
    """``length`` bytes of a file: those of ``info`` from ``start`` on, or bytes that nobody wants."""

    file: InputFile
    digest: hashlib._Hash  # of the whole file
    offset: int
    length: int
    info: TensorInfo | None = None
    start: int = 0


class Pipeline:
    """One run over ``slices``; ``hashed`` counts the bytes that went into the digests so far."""

    def __init__(self, slices: Sequence[Slice], take: Take, threads: int) -> None:
        self.hashed = 0
        self._slices, self._take = slices, take
        self._threads = max(1, min(threads, len(slices)))
        self._room = max((part.length for part in slices), default=0)
        self._read_next = self._hash_next = 0  # indices of slices
        self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def run(self, tick: Callable[[], object]) -> None:
        """Do all the work; ``tick`` is called in this thread, now and then.

        Raises the first error of reading, of the consumer or of ``tick``, once every other thread has ended.
        """
        tick()  # at least once: the others may be faster than this thread
        if self._threads == 1:
            self._work(tick)
        else:
            self._watch(tick)
        try:
            if self._error is not None:
                raise self._error
        finally:
            self._error = None  # its traceback holds this object

    def _watch(self, tick: Callable[[], object]) -> None:
        """Leave the work to other threads: Ctrl-C strikes this one, and must not find it holding the lock."""
        workers = [threading.Thread(target=self._work, name="rase-load") for _ in range(self._threads)]
        try:
            for worker in workers:
                try:
                    worker.start()
                except RuntimeError:  # no more threads for this process: those that run do all
                    if worker is workers[0]:
                        raise
            for worker in workers:
                while worker.is_alive():
                    tick()
                    worker.join(_PATIENCE)
        finally:
            self._stopped = True  # seen before the next stage, or after waiting for a turn
            for worker in workers:
                if worker.ident is not None:
                    worker.join()

    def _work(self, tick: Callable[[], object] = lambda: None) -> None:
        import numpy as np

        try:
            buffer = np.empty(self._room, dtype=np.uint8).data  # no time spent on zeros
            while True:
                tick()
                with self._changed:
                    index = self._read_next
                    self._read_next += 1
                if self._over() or index >= len(self._slices):
                    return
                self._process(index, buffer)
        except BaseException as error:
            self._error = self._error or error
            with self._changed:
                self._changed.notify_all()

    def _process(self, index: int, buffer: memoryview) -> None:
        part, data = self._slices[index], buffer[: self._slices[index].length]
        what = f"tensor '{part.info.name}'" if part.info else "data between the tensors that are loaded"
        failure: Exception | None = None
        try:
            part.file.read_into(data, part.offset, what)
        except Exception as error:
            failure = error
        with self._changed:
            while self._hash_next != index and not self._over():
                self._changed.wait(_PATIENCE)
        if self._over():
            return
        if failure is not None:
            raise failure  # in its turn: of several, the first in the file is reported
        part.digest.update(data)
        with self._changed:
            self.hashed += part.length
            self._hash_next += 1
            self._changed.notify_all()
        if part.info is not None:
            self._take(part.info, part.start, data.toreadonly())

    def _over(self) -> bool:
        return self._stopped or self._error is not None
