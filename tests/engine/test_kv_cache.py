"""PagePool: lowest free id first, references, growth within the budget. SequencePages: windows, sharing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.engine.kv_cache import ABSENT, PagePool, SequencePages
from rase.errors import InsufficientMemory


class Storage:
    """As much of a ``Program`` as a pool knows."""

    page_tokens = 32
    max_batch_tokens = 64

    def __init__(
        self, limit: int | None = None, windows: tuple[int | None, ...] = (None,), states: int = 0
    ) -> None:
        self.calls: list[int] = []
        self.copies: list[tuple[int, int, int]] = []
        self.limit = limit
        self.page_bytes = (1000,) * (len(windows) + states)
        groups = [SimpleNamespace(kind="full", window=window) for window in windows]
        groups += [SimpleNamespace(kind="state", window=2)] * states
        self.graph = SimpleNamespace(caches=groups, context_length=3200)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self.copies.append((group, source, target))

    def reserve_pages(self, n: int, group: int) -> None:
        self.calls.append(n)
        if self.limit is not None and n > self.limit:
            raise InsufficientMemory("pages", needed=n, available=self.limit)


def test_the_lowest_free_id_comes_first():
    pool = PagePool(Storage(), 100_000)
    assert [pool.allocate(0) for _ in range(4)] == [0, 1, 2, 3]
    for page in (2, 0, 3):
        pool.release(0, page)
    assert [pool.allocate(0) for _ in range(4)] == [0, 2, 3, 4]


def test_a_page_is_free_when_its_last_reference_is_gone():
    pool = PagePool(Storage(), 100_000)
    page = pool.allocate(0)
    pool.retain(0, page)
    pool.release(0, page)
    assert pool.references(0, page) == 1 and pool.allocate(0) == 1
    pool.release(0, page)
    assert pool.references(0, page) == 0 and pool.in_use == (1,) and pool.allocate(0) == page


@pytest.mark.parametrize("page", [0, 5, -1])
def test_a_free_page_cannot_be_released_or_retained(page):
    pool = PagePool(Storage(), 100_000)
    pool.release(0, pool.allocate(0))
    with pytest.raises(ValueError, match="not in use"):
        pool.release(0, page)
    with pytest.raises(ValueError, match="not in use"):
        pool.retain(0, page)


def test_the_budget_ends_it_with_the_numbers_and_a_release_helps():
    storage = Storage()
    pool = PagePool(storage, 3999)
    assert pool.capacity == (3,)
    pages = [pool.allocate(0) for _ in range(3)]
    with pytest.raises(InsufficientMemory) as caught:
        pool.allocate(0)
    assert (caught.value.needed, caught.value.available) == (4000, 3999)
    assert pool.in_use == (3,) and max(storage.calls) == 3
    pool.release(0, pages[1])
    assert pool.allocate(0) == 1


def test_storage_grows_with_use_and_not_for_every_page():
    storage = Storage()
    pool = PagePool(storage, 10**9)
    for page in range(1000):
        assert pool.allocate(0) == page
        assert storage.calls[-1] > page
    assert storage.calls == sorted(storage.calls) and len(storage.calls) < 16
    assert storage.calls[0] == 8, "a short prompt takes little"


def test_large_pages_are_reserved_before_they_are_needed():
    storage = Storage()
    storage.page_bytes = (4 << 20,)  # 16 MiB ahead are four pages, 64 MiB sixteen
    pool = PagePool(storage, 80 * storage.page_bytes[0])
    assert pool.allocate(0) == 0 and storage.calls == [8]
    for page in range(1, 80):
        before = storage.calls[-1]
        assert pool.allocate(0) == page < before, "every page was ready"
        spare = storage.calls[-1] - page
        assert spare > min(max(page, 4), 16) or storage.calls[-1] == 80
        assert spare <= 8 + 2 * page, "a short context takes little"
    with pytest.raises(InsufficientMemory):
        pool.allocate(0)


def test_what_is_ready_ahead_is_given_up_where_memory_is_short():
    storage = Storage(limit=5)
    storage.page_bytes = (4 << 20,)
    pool = PagePool(storage, 40 * storage.page_bytes[0])
    assert [pool.allocate(0) for _ in range(5)] == list(range(5))
    with pytest.raises(InsufficientMemory):
        pool.allocate(0)


def test_when_spare_pages_do_not_fit_the_needed_one_still_does():
    storage = Storage(limit=10)
    pool = PagePool(storage, 10**9)
    assert [pool.allocate(0) for _ in range(10)] == list(range(10))
    with pytest.raises(InsufficientMemory):
        pool.allocate(0)
    pool.release(0, 4)
    assert pool.allocate(0) == 4 and pool.in_use == (10,)


@given(st.lists(st.integers(0, 30)))
def test_any_order_keeps_ids_unique_and_counted(steps):
    pool = PagePool(Storage(), 20_000)
    held: list[int] = []
    for step in steps:
        if step % 3 and held:
            pool.release(0, held.pop(step % len(held)))
        elif len(held) < 20:
            page = pool.allocate(0)
            assert page == min(set(range(21)) - set(held)), "the lowest free id"
            held.append(page)
    assert pool.in_use == (len(held),)


def test_groups_have_ids_and_counts_of_their_own():
    pool = PagePool(Storage(windows=(None, 64)), 100_000)
    assert [pool.allocate(0), pool.allocate(0), pool.allocate(1)] == [0, 1, 0]
    pool.release(0, 0)
    assert pool.in_use == (1, 1) and pool.references(1, 0) == 1


def test_the_budget_is_divided_by_what_a_long_sequence_holds():
    pool = PagePool(Storage(windows=(None, 64)), 150_000)  # 100 pages for the whole context
    assert pool.capacity == (100, 50) and pool.most_pages(3200) == (100, 6)
    assert PagePool(Storage(windows=(64,)), 150_000).capacity == (150,)
    pool.check_fits(3200)
    with pytest.raises(InsufficientMemory) as caught:
        pool.check_fits(3201)
    assert (caught.value.needed, caught.value.available) == (107_000, 150_000)


def test_a_window_gives_its_pages_back_and_a_full_group_keeps_them():
    pool = PagePool(Storage(windows=(None, 64)), 10**9)
    pages = SequencePages(pool)
    for length in range(1, 400):
        pages.reserve(length)
        pages.leave_behind(length)
        sees_from = max(0, length - 64 + 1) // 32
        full, window = pages.tables
        assert ABSENT not in full and window[sees_from:] == [page for page in window if page != ABSENT]
    assert pool.in_use == (13, 3)
    pages.truncate(0)
    assert pool.in_use == (0, 0)


def test_a_state_takes_few_pages_and_leaves_the_last_full_one_behind():
    pool = PagePool(Storage(windows=(None,), states=1), 200_000)
    assert pool.most_pages(3200) == (100, 3) and pool.capacity[1] >= 24
    pages = SequencePages(pool)
    for length in (100, 101, 300, 320, 321, 322):
        before = [place for place, page in enumerate(pages.tables[1]) if page != ABSENT]
        pages.reserve(length)
        held = [place for place, page in enumerate(pages.tables[1]) if page != ABSENT]
        last = -(-length // 32) - 1
        assert held == sorted({*before, last, *([last - 1] if last - 1 > max(before, default=-1) else [])})
        pages.leave_behind(length)
        assert pool.in_use[1] <= 2 and pages.tables[1][(length - 1) // 32] != ABSENT
    other = pages.fork(322)
    assert other.tables[1][-1] != pages.tables[1][-1] and (1, 10, 10) not in pool.program.copies
    other.truncate(0)
    pages.truncate(0)
    assert pool.in_use == (0, 0)


def test_a_fork_shares_full_pages_and_copies_the_last():
    storage = Storage(windows=(None, 64))
    pool = PagePool(storage, 10**9)
    pages = SequencePages(pool)
    pages.reserve(200)
    pages.leave_behind(200)
    other = pages.fork(200)
    assert [table[:6] for table in other.tables] == [table[:6] for table in pages.tables]
    assert storage.copies == [(0, 6, 7), (1, 6, 0)] and other.tables[0][6] == 7
    pages.truncate(0)
    assert pool.in_use == (7, 3), "what the fork holds"
    other.truncate(0)
    assert pool.in_use == (0, 0)


def test_a_fork_without_room_holds_nothing():
    pool = PagePool(Storage(), 3000)
    pages = SequencePages(pool)
    pages.reserve(96)
    with pytest.raises(InsufficientMemory):
        pages.fork(70)
    assert pool.in_use == (3,) and all(pool.references(0, page) == 1 for page in range(3))
