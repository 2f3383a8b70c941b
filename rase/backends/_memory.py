"""Anonymous memory for weights, pages and scratch: page-aligned, zeroed, huge pages where there are any."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import threading
from typing import Any

import numpy as np

from rase.errors import InsufficientMemory

__all__ = ["Arena"]

_POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE, since 5.14
_PIECE = 2 << 20  # bytes of one request to the system: another thread may wait for memory meanwhile


class Arena:
    """``nbytes`` of zeroed memory, carved into 64-byte aligned pieces. Raises ``InsufficientMemory``."""

    def __init__(self, nbytes: int, what: str) -> None:
        self.nbytes, self._used = max(nbytes, 1), 0
        try:
            self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError, MemoryError):
            raise InsufficientMemory(what, needed=nbytes, available=_available()) from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages: slower, not wrong
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: Any = np.frombuffer(self._map, np.uint8)
        self.address: int = self._bytes.ctypes.data

    def populate(self) -> threading.Thread | None:
        """Get the memory from the system ahead of its first use, which would wait for it page by page
        (clearing a huge one takes milliseconds): in a thread that runs while a processor has nothing else to
        do. None where the system cannot be asked.
        """
        if not sys.platform.startswith("linux"):
            return None
        thread = threading.Thread(target=self._populate, name="rase-memory", daemon=True)
        thread.start()
        return thread

    def _populate(self) -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread
        madvise = ctypes.CDLL(None).madvise  # Python's own holds the interpreter meanwhile
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start in range(0, self.nbytes, _PIECE):
            if madvise(self.address + start, min(_PIECE, self.nbytes - start), _POPULATE_WRITE):
                return  # an older system, or no memory: then at the first use, as ever

    @staticmethod
    def room(nbytes: int) -> int:
        """What a piece of ``nbytes`` takes, with its alignment."""
        return -(-nbytes // 64) * 64

    def take(self, nbytes: int) -> Any:
        """The next ``nbytes``, as a uint8 array (nbytes,)."""
        start = self._used
        self._used += self.room(nbytes)
        if self._used > self.room(self.nbytes):
            raise MemoryError(f"arena of {self.nbytes} bytes is full")
        return self._bytes[start : start + nbytes]


def _available() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
