"""``RowMemory``: what a program writes its rows to, the same memory as soon as nobody holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rase._kernels.batch import Output

__all__ = ["RowMemory"]

_KEEP_BYTES = 64 << 20  # a larger output, of a program that was asked for many rows, is not kept


class RowMemory:
    """Outputs of ``columns`` and ``blocks`` of peaks, for one caller at a time."""

    def __init__(self, columns: int, blocks: int) -> None:
        self._columns, self._blocks = columns, blocks
        # At most two: the next rows come while the last ones are looked at.
        self._kept: list[Output] = []
        self.last: Output | None = None  # the one that was taken last, if it is kept

    def take(self, rows: int) -> Output:
        """An output of ``rows`` rows, of which nobody else has anything."""
        for output in self._kept:
            if output.fit(rows):
                self.last = output
                return output
        from rase._kernels.batch import Output

        output = Output(max(rows, 1), self._columns, self._blocks)
        output.fit(rows)
        self.last = None
        if output.nbytes <= _KEEP_BYTES:
            self._kept, self.last = [*self._kept[-1:], output], output
        return output
