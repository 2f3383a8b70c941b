"""``RowMemory``: memory for what a program returns, used again as soon as nobody holds the array.

Logits of a step are megabytes. Fresh memory of that size comes page by page from the system, which clears
each one: longer than a sampler takes to read them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["RowMemory"]

_KEEP_BYTES = 64 << 20  # a larger array, of a program that was asked for many rows, is not kept


def _references(memories: list[Any]) -> list[int]:
    return [sys.getrefcount(memory) for memory in memories]


_NOBODY = _references([object()])[0]  # what is in a list and nowhere else; differs between Pythons


class RowMemory:
    """Float32 arrays for one caller at a time; they may be dropped in any thread.

    Every view of an array counts among its references. A finalizer would say so as well, but one that Ctrl-C
    strikes in swallows it.
    """

    def __init__(self) -> None:
        # At most two: the next rows come while the last ones are looked at.
        self._kept: list[np.ndarray[Any, np.dtype[np.float32]]] = []

    def take(self, rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """An array ``(rows, columns)`` of whatever numbers. Nobody else has its memory while it, or a view
        of it, lives.
        """
        count = rows * columns
        for index, references in enumerate(_references(self._kept)):
            if references == _NOBODY and self._kept[index].size >= count:
                memory = self._kept[index]
                break
        else:
            memory = np.empty(count, np.float32)
            if memory.nbytes <= _KEEP_BYTES:
                self._kept = [*self._kept[-1:], memory]
        return memory[:count].reshape(rows, columns)  # views, whose base is the memory itself
