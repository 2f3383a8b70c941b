"""Anonymous memory for weights, pages and scratch: page-aligned, zeroed, huge pages where there are any."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np

from rase.errors import InsufficientMemory

__all__ = ["Arena"]


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
