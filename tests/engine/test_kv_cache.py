"""PagePool: lowest free id first, reference counts, growth within the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.engine.kv_cache import PagePool
from rase.errors import InsufficientMemory


class Storage:
    """As much of a ``Program`` as a pool knows."""

    page_bytes = 1000
    page_tokens = 32

    def __init__(self, limit: int | None = None) -> None:
        self.calls: list[int] = []
        self.limit = limit

    def reserve_pages(self, n: int) -> None:
        self.calls.append(n)
        if self.limit is not None and n > self.limit:
            raise InsufficientMemory("pages", needed=n, available=self.limit)


def test_the_lowest_free_id_comes_first():
    pool = PagePool(Storage(), 100_000)
    assert [pool.allocate() for _ in range(4)] == [0, 1, 2, 3]
    for page in (2, 0, 3):
        pool.release(page)
    assert [pool.allocate() for _ in range(4)] == [0, 2, 3, 4]


def test_a_page_is_free_when_its_last_reference_is_gone():
    pool = PagePool(Storage(), 100_000)
    page = pool.allocate()
    pool.retain(page)
    pool.release(page)
    assert pool.references(page) == 1 and pool.allocate() == 1
    pool.release(page)
    assert pool.references(page) == 0 and pool.in_use == 1 and pool.allocate() == page


@pytest.mark.parametrize("page", [0, 5, -1])
def test_a_free_page_cannot_be_released_or_retained(page):
    pool = PagePool(Storage(), 100_000)
    pool.release(pool.allocate())
    with pytest.raises(ValueError, match="not in use"):
        pool.release(page)
    with pytest.raises(ValueError, match="not in use"):
        pool.retain(page)


def test_the_budget_ends_it_with_the_numbers_and_a_release_helps():
    storage = Storage()
    pool = PagePool(storage, 3999)
    assert pool.capacity == 3
    pages = [pool.allocate() for _ in range(3)]
    with pytest.raises(InsufficientMemory) as caught:
        pool.allocate()
    assert (caught.value.needed, caught.value.available) == (4000, 3999)
    assert pool.in_use == 3 and max(storage.calls) == 3
    pool.release(pages[1])
    assert pool.allocate() == 1


def test_storage_grows_with_use_and_not_for_every_page():
    storage = Storage()
    pool = PagePool(storage, 10**9)
    for page in range(1000):
        assert pool.allocate() == page
        assert storage.calls[-1] > page
    assert storage.calls == sorted(storage.calls) and len(storage.calls) < 16
    assert storage.calls[0] == 8, "a short prompt takes little"


def test_when_spare_pages_do_not_fit_the_needed_one_still_does():
    storage = Storage(limit=10)
    pool = PagePool(storage, 10**9)
    assert [pool.allocate() for _ in range(10)] == list(range(10))
    with pytest.raises(InsufficientMemory):
        pool.allocate()
    pool.release(4)
    assert pool.allocate() == 4 and pool.in_use == 10


@given(st.lists(st.integers(0, 30)))
def test_any_order_keeps_ids_unique_and_counted(steps):
    pool = PagePool(Storage(), 20_000)
    held: list[int] = []
    for step in steps:
        if step % 3 and held:
            pool.release(held.pop(step % len(held)))
        elif len(held) < 20:
            page = pool.allocate()
            assert page == min(set(range(21)) - set(held)), "the lowest free id"
            held.append(page)
    assert pool.in_use == len(held)
