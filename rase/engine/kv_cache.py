"""``PagePool``: which pages of a program's KV cache are in use, within a budget of bytes.

A page holds ``Program.page_tokens`` positions of every layer. The pool hands out page ids and counts
references; the storage itself belongs to the program and grows with use, so a long context costs nothing
until it is filled.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from rase.errors import InsufficientMemory

if TYPE_CHECKING:
    from rase.backends.base import Program

__all__ = ["PagePool"]

_FIRST_STEP = 8  # pages of the first reservation: 256 tokens at 32 tokens a page


class PagePool:
    """Page ids of one program with reference counts, at most ``budget_bytes`` of storage.

    The lowest free id is always taken first, so that a run can be repeated exactly and storage stays dense.
    Not thread-safe: it belongs to the one caller that drives the program.
    """

    def __init__(self, program: Program, budget_bytes: int) -> None:
        self._program = program
        self._budget = budget_bytes
        self.capacity = budget_bytes // program.page_bytes if program.page_bytes else 2**31 - 1
        self._references: list[int] = []  # by page id; 0 = free
        self._free: list[int] = []  # heap of the ids below len(_references) that nobody uses
        self._reserved = 0  # pages that the program has storage for

    @property
    def page_tokens(self) -> int:
        """Positions in one page."""
        return self._program.page_tokens

    @property
    def in_use(self) -> int:
        """Number of pages with at least one reference."""
        return len(self._references) - len(self._free)

    def allocate(self) -> int:
        """Return a page id with one reference; its contents are undefined.

        Raises ``InsufficientMemory`` when the budget is spent or the program cannot get the storage.
        """
        if self._free:
            page = heapq.heappop(self._free)
        else:
            page = len(self._references)
            if page >= self._reserved:
                self._grow(page + 1)
            self._references.append(0)
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a reference to a page that is in use."""
        self._check(page)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop one reference; the page is free when none is left."""
        self._check(page)
        self._references[page] -= 1
        if self._references[page] == 0:
            heapq.heappush(self._free, page)

    def references(self, page: int) -> int:
        """Number of references to ``page``."""
        return self._references[page] if 0 <= page < len(self._references) else 0

    def _check(self, page: int) -> None:
        if self.references(page) == 0:
            raise ValueError(f"page {page} is not in use")

    def _grow(self, needed: int) -> None:
        if needed > self.capacity:
            raise InsufficientMemory(
                f"the KV cache ({needed} pages of {self.page_tokens} tokens)",
                needed=needed * self._program.page_bytes,
                available=self._budget,
                hint="Shorten the prompt or max_tokens, or allow a larger KV cache.",
            )
        generous = min(self.capacity, max(_FIRST_STEP, self._reserved + self._reserved // 2, needed))
        try:
            self._program.reserve_pages(generous)
        except InsufficientMemory:
            if generous == needed:
                raise
            generous = needed  # the spare pages were only there to grow less often
            self._program.reserve_pages(needed)
        self._reserved = generous
