"""``RowMemory``: memory for what a program returns, used again as soon as nobody holds the array.

Logits of a step are megabytes. Fresh memory of that size comes page by page from the system, which clears
each one: longer than a sampler takes to read them.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

__all__ = ["RowMemory"]

_KEEP_BYTES = 64 << 20  # a larger array, of a program that was asked for many rows, is given back at once


class RowMemory:
    """Float32 arrays for one caller at a time; they may be dropped in any thread."""

    def __init__(self) -> None:
        self._spare: list[Any] = []  # at most two: the next rows come while the last ones are looked at

    def take(self, rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """An array ``(rows, columns)`` of whatever numbers. Nobody else has its memory while it, or a view
        of it, lives.
        """
        count = rows * columns
        memory = self._spare.pop() if self._spare else None
        if memory is None or memory.size < count:
            memory = np.empty(count, np.float32)
        array = np.frombuffer(memory.data, np.float32, count) if count else np.empty(0, np.float32)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array.reshape(rows, columns)  # its base is `array`: views of views keep that alive

    def _give_back(self, memory: Any) -> None:
        if len(self._spare) < 2 and memory.nbytes <= _KEEP_BYTES:
            self._spare.append(memory)
