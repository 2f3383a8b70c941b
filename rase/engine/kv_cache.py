"""Which pages of a KV cache are in use: ``PagePool`` by the page, ``SequencePages`` by the sequence.

A page holds ``Program.page_tokens`` positions of every layer of one cache group; each group has page ids of
its own. The pool hands out ids and counts references; the storage belongs to the program and grows with use,
so a long context costs nothing until it is filled. A page of a recurrent group holds the state after its last
token: a sequence needs the page that it stands in and the one that it writes, and others are snapshots.
"""

from __future__ import annotations

import contextlib
import heapq
from typing import TYPE_CHECKING

from rase.backends.base import STATE_PAGES
from rase.errors import InsufficientMemory

if TYPE_CHECKING:
    from rase.backends.base import Program

__all__ = ["ABSENT", "OutOfPages", "PagePool", "SequencePages"]

ABSENT = -1  # in a page table: no page, or one that the window has left behind
_STATE_SEQUENCES = 8  # whose states get a share of the memory beside one sequence of the whole context
_AHEAD_BYTES = (16 << 20, 64 << 20)  # of pages that are reserved before they are needed, least and most,
_LARGE_PAGE = 1 << 20  # where a page has so many bytes that getting it from the system takes time
_FIRST_STEP = 8  # pages of the first reservation: 256 tokens at 32 tokens a page


class OutOfPages(InsufficientMemory):
    """No page of cache group ``group`` is free, and the storage cannot grow."""

    group: int = 0


class PagePool:
    """Page ids of one program with reference counts, at most ``budget_bytes`` of storage over all groups.

    The lowest free id is always taken first, so that a run can be repeated exactly and storage stays dense.
    Not thread-safe: it belongs to the one caller that drives the program.
    """

    def __init__(self, program: Program, budget_bytes: int) -> None:
        self.program = program
        self.page_tokens: int = program.page_tokens
        self.budget = budget_bytes
        self.windows = _windows(program)
        self.states = [group.kind == "state" for group in program.graph.caches]
        self.windowed = any(self.windows)
        self._groups = [
            _GroupPool(program, group, capacity, budget_bytes)
            for group, capacity in enumerate(_capacities(program, self.windows, self.states, budget_bytes))
        ]

    @property
    def capacity(self) -> tuple[int, ...]:
        """Most pages of each cache group."""
        return tuple(group.capacity for group in self._groups)

    @property
    def in_use(self) -> tuple[int, ...]:
        """Number of pages with at least one reference, by cache group."""
        return tuple(group.in_use for group in self._groups)

    def allocate(self, group: int) -> int:
        """Return a page id with one reference; its contents are undefined.

        Raises ``OutOfPages`` when the budget is spent or the program cannot get the storage.
        """
        return self._groups[group].allocate()

    def retain(self, group: int, page: int) -> None:
        """Add a reference to a page that is in use."""
        self._groups[group].retain(page)

    def release(self, group: int, page: int) -> None:
        """Drop one reference; the page is free when none is left."""
        self._groups[group].release(page)

    def references(self, group: int, page: int) -> int:
        """Number of references to ``page``."""
        return self._groups[group].references(page)

    def most_pages(self, tokens: int) -> tuple[int, ...]:
        """Pages of each group that one sequence of ``tokens`` positions holds at most at one time."""
        whole, step = -(-tokens // self.page_tokens), self.program.max_batch_tokens
        return tuple(
            min(whole, STATE_PAGES if state else (window + step) // self.page_tokens + 2) if window else whole
            for window, state in zip(self.windows, self.states, strict=True)
        )

    @property
    def most_tokens(self) -> int:
        """Positions of the longest sequence that can run, alone, within the budget and the context."""
        tokens = self.program.graph.context_length
        for needed, capacity, window in zip(
            self.most_pages(tokens), self.capacity, self.windows, strict=True
        ):
            if needed > capacity:
                tokens = 0 if window and capacity < needed else min(tokens, capacity * self.page_tokens)
        return tokens

    def check_fits(self, tokens: int) -> None:
        """Raise ``InsufficientMemory`` when a sequence of ``tokens`` positions cannot run even alone."""
        needed = self.most_pages(tokens)
        if any(need > capacity for need, capacity in zip(needed, self.capacity, strict=True)):
            raise InsufficientMemory(
                f"the KV cache of {tokens} tokens",
                needed=_bytes(needed, self.program.page_bytes),
                available=_bytes(self.capacity, self.program.page_bytes),
                hint="Shorten the prompt or max_tokens, or free memory and load again.",
            )


class _GroupPool:
    """The page ids of one cache group."""

    def __init__(self, program: Program, group: int, capacity: int, budget: int) -> None:
        self._program, self._group, self._budget = program, group, budget
        self.capacity = capacity
        size = program.page_bytes[group]
        least, most = (max(some // size, 1) if size >= _LARGE_PAGE else 0 for some in _AHEAD_BYTES)
        self._ahead = least, most
        self._references: list[int] = []  # by page id; 0 = free
        self._free: list[int] = []  # heap of the ids below len(_references) that nobody uses
        self._reserved = 0  # pages that the program has storage for

    @property
    def in_use(self) -> int:
        return len(self._references) - len(self._free)

    def allocate(self) -> int:
        if self._free:
            page = heapq.heappop(self._free)
        else:
            page = len(self._references)
            if page >= self._reserved:
                self._grow(page + 1)
            else:
                self._stay_ahead(page)
            self._references.append(0)
        self._references[page] = 1
        return page

    def _spare(self, used: int) -> int:
        """Pages to have in reserve beside ``used`` ones: as many again, within bounds."""
        least, most = self._ahead
        return min(max(used, least), most)

    def _stay_ahead(self, page: int) -> None:
        """Have pages beyond ``page`` in reserve, if there is memory for them."""
        spare = self._spare(page)
        if spare and page + spare >= self._reserved < self.capacity:
            with contextlib.suppress(OutOfPages):
                self._grow(self._reserved + 1)

    def retain(self, page: int) -> None:
        self._check(page)
        self._references[page] += 1

    def release(self, page: int) -> None:
        self._check(page)
        self._references[page] -= 1
        if self._references[page] == 0:
            heapq.heappush(self._free, page)

    def references(self, page: int) -> int:
        return self._references[page] if 0 <= page < len(self._references) else 0

    def _check(self, page: int) -> None:
        if self.references(page) == 0:
            raise ValueError(f"page {page} is not in use")

    def _grow(self, needed: int) -> None:
        if needed > self.capacity:
            raise self._out(needed, self._budget)
        step = max(self._spare(self._reserved), self._reserved // 2)
        generous = min(self.capacity, max(_FIRST_STEP, self._reserved + step, needed))
        for wanted in (generous, needed):  # the spare pages are only there to grow less often
            try:
                self._program.reserve_pages(wanted, self._group)
                self._reserved = wanted
                return
            except InsufficientMemory as error:
                available = error.available
        raise self._out(needed, available)

    def _out(self, pages: int, available: int) -> OutOfPages:
        error = OutOfPages(
            f"the KV cache ({pages} pages of {self._program.page_tokens} tokens)",
            needed=pages * self._program.page_bytes[self._group],
            available=available,
            hint="Shorten the prompt or max_tokens, or allow a larger KV cache.",
        )
        error.group = self._group
        return error


class SequencePages:
    """The pages of one sequence: by cache group a list of ids in order of position; ``ABSENT`` is none."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.tables: list[list[int]] = [[] for _ in pool.windows]
        self.changes = 0  # how often the tables have changed
        self.room = 0  # positions that the pages hold
        self._seen = [0] * len(pool.windows)  # first page that a window still sees
        self._kept: list[tuple[int, int, int]] = []  # copies of states: group, number of the page, page
        self._measure()

    def _measure(self) -> None:
        """The tables have another length: one that ran out of pages may lag behind."""
        self.changes += 1
        whole = min(map(len, self.tables), default=-1)
        self.room = self.pool.most_tokens if whole < 0 else whole * self.pool.page_tokens

    def reserve(self, length: int) -> None:
        """Hold pages for ``length`` positions, which run next. Raises ``OutOfPages``; what was got is kept.

        Of a state group only the last two: the last full page becomes a snapshot, for whoever comes back.
        """
        needed = -(-length // self.pool.page_tokens)
        try:
            for group, table in enumerate(self.tables):
                while len(table) < needed:
                    skipped = self.pool.states[group] and len(table) < needed - 2
                    table.append(ABSENT if skipped else self.pool.allocate(group))
        finally:
            self._measure()

    def share(self, pages: tuple[int, ...]) -> None:
        """Append one page of each group that someone else holds as well."""
        for group, page in enumerate(pages):
            if page != ABSENT:
                self.pool.retain(group, page)
            self.tables[group].append(page)
        self._measure()

    def at(self, index: int) -> tuple[int, ...]:
        """Page number ``index`` of each group."""
        return tuple(table[index] for table in self.tables)

    def replace(self, index: int, pages: tuple[int, ...]) -> None:
        """Take over someone else's ``pages``, which hold the same, for those of number ``index``."""
        for group, (table, page) in enumerate(zip(self.tables, pages, strict=True)):
            if table[index] not in (page, ABSENT):
                self.pool.retain(group, page)
                self.pool.release(group, table[index])
                table[index] = page
                self.changes += 1

    def truncate(self, length: int) -> None:
        """Keep the pages of the first ``length`` positions."""
        self.forget_states()
        keep = -(-length // self.pool.page_tokens)
        for group, table in enumerate(self.tables):
            while len(table) > keep:
                if (page := table.pop()) != ABSENT:
                    self.pool.release(group, page)
            self._seen[group] = min(self._seen[group], keep)
        self._measure()

    def keep_states(self, length: int) -> None:
        """Make ``go_back`` possible after tokens of the page that holds position ``length``, where the states
        stand. Raises ``OutOfPages``, and keeps nothing then.
        """
        index, rest = divmod(length, self.pool.page_tokens)
        try:
            for group, state in enumerate(self.pool.states):
                if state and rest:  # else the page before holds them, and is only read
                    self._kept.append((group, index, self.pool.allocate(group)))
                    self.pool.program.copy_page(group, self.tables[group][index], self._kept[-1][2])
        except OutOfPages:
            self.forget_states()
            raise

    def go_back(self) -> None:
        """Let the states stand where they did at ``keep_states``."""
        for group, index, page in self._kept:
            self.pool.release(group, self.tables[group][index])
            self.tables[group][index] = page
            self.changes += 1
        self._kept = []

    def forget_states(self) -> None:
        """Release what ``keep_states`` has kept."""
        for group, _, page in self._kept:
            self.pool.release(group, page)
        self._kept = []

    def standing(self, length: int) -> int:
        """The most positions up to ``length``, fewer than ran, from which a sequence can go on.

        Its states must stand after them, and windows must still have all that they see then.
        """
        pool, size = self.pool, self.pool.page_tokens
        tables = [table for table, state in zip(self.tables, pool.states, strict=True) if state]
        index = length // size
        while tables and index and any(table[index - 1] == ABSENT for table in tables):
            index -= 1
        length = index * size if tables else length
        for table, window, state in zip(self.tables, pool.windows, pool.states, strict=True):
            if window and not state:
                first = max(0, length - window + 1) // size
                if ABSENT in table[first : -(-length // size)]:
                    return 0  # what is before it is gone as well
        return length

    def leave_behind(self, length: int) -> None:
        """Release what no token from position ``length`` on sees any more."""
        for group, window in enumerate(self.pool.windows):
            if window:
                table, first = self.tables[group], max(0, length - window + 1) // self.pool.page_tokens
                for index in range(self._seen[group], min(first, len(table))):
                    if table[index] != ABSENT:
                        self.pool.release(group, table[index])
                        table[index] = ABSENT
                        self.changes += 1
                self._seen[group] = max(self._seen[group], min(first, len(table)))

    def fork(self, length: int) -> SequencePages:
        """A second owner of the first ``length`` positions: full pages are shared, the last one is copied.

        Raises ``OutOfPages``, and holds nothing then.
        """
        other = SequencePages(self.pool)
        full, rest = divmod(length, self.pool.page_tokens)
        for index in range(full):
            other.share(tuple(table[index] for table in self.tables))
        if rest:
            try:
                for group, table in enumerate(self.tables):
                    other.tables[group].append(self.pool.allocate(group))
                    self.pool.program.copy_page(group, table[full], other.tables[group][full])
            except OutOfPages:
                other.truncate(0)
                raise
        other._seen = list(self._seen)
        other._measure()
        return other


def _windows(program: Program) -> list[int]:
    """Positions that each cache group sees, 0 = all of them."""
    return [group.window or 0 for group in program.graph.caches]


def _capacities(program: Program, windows: list[int], states: list[bool], budget: int) -> list[int]:
    """Pages of each group within ``budget`` bytes.

    Storage cannot move between groups, so the budget is divided at the start by what a sequence of the whole
    context holds; a window group gets at least half of what a full one has, for sequences that are not long,
    and a state group what some sequences need.
    """
    if not any(program.page_bytes):
        return [2**31 - 1] * len(windows)
    whole = -(-program.graph.context_length // program.page_tokens)
    needs = [
        min(whole, STATE_PAGES * _STATE_SEQUENCES)
        if state
        else min(whole, max(whole // 2, (window + program.max_batch_tokens) // program.page_tokens + 2))
        if window and not all(windows)
        else whole
        for window, state in zip(windows, states, strict=True)
    ]
    one = _bytes(needs, program.page_bytes)
    return [budget * need // one for need in needs]


def _bytes(pages: tuple[int, ...] | list[int], sizes: tuple[int, ...]) -> int:
    return sum(count * size for count, size in zip(pages, sizes, strict=True))
