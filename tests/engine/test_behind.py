"""Readers that fall behind: their requests are held, nobody else notices, and nothing is lost."""

from __future__ import annotations

import time

import pytest

from rase.errors import DeadlineExceeded
from tests.engine.test_batching import Asked, Bench, prompt

AHEAD = 5


class Reader:
    """Takes the tokens of one request when it is told to; the model may be ``AHEAD`` ahead of it."""

    def __init__(self, bench: Bench, asked: Asked) -> None:
        self.bench, self.asked, self.taken = bench, asked, 0
        asked.request.ahead = lambda: self.unread >= AHEAD

    @property
    def made(self) -> int:
        return sum(map(len, self.asked.tokens.values()))

    @property
    def unread(self) -> int:
        return self.made - self.taken


def steps(bench: Bench, most: int = 200) -> None:
    """Step until there is nothing to do, be it that somebody does not read."""
    for _ in range(most):
        if not bench.batching.step():
            return
        bench.check_pages()
    raise AssertionError("it never ends")


@pytest.mark.parametrize("n", [1, 3])
def test_the_model_is_never_far_ahead_and_nothing_is_lost(n: int) -> None:
    bench = Bench()
    reader = Reader(bench, bench.add(prompt(40), n=n, max_tokens=50, temperature=1.0))
    while not reader.asked.request.done:
        steps(bench)
        assert reader.unread < AHEAD + n
        reader.taken = reader.made
    bench.check()


def test_nobody_waits_for_a_place_that_a_slow_reader_does_not_use() -> None:
    bench = Bench(max_batch_seqs=1)
    reader = Reader(bench, bench.add(prompt(40), max_tokens=50))
    other = bench.add(prompt(40, 1), max_tokens=30)
    steps(bench)
    assert other.request.done and not reader.asked.request.done and reader.made == AHEAD
    reader.taken = 10**6
    bench.finish()
    bench.check()


def test_a_slow_reader_gives_its_pages_first() -> None:
    bench = Bench(pages=9)
    reader = Reader(bench, bench.add(prompt(100), max_tokens=50))
    steps(bench)
    late = bench.add(prompt(150, 1), max_tokens=60)
    steps(bench)
    assert late.request.done and bench.seen.preemptions == 1
    reader.taken = 10**6
    bench.finish()
    bench.check()


def test_a_slow_reader_can_be_cancelled_and_is_held_to_its_deadline() -> None:
    bench = Bench()
    gone, late = (Reader(bench, bench.add(prompt(40, seed), max_tokens=50)) for seed in (1, 2))
    steps(bench)
    late.asked.request.deadline = time.monotonic()
    gone.asked.request.stopped = True
    assert bench.batching.asks()
    steps(bench)
    assert gone.asked.request.done and gone.asked.request.error is None
    assert isinstance(late.asked.request.error, DeadlineExceeded)
    assert not any(bench.pool.in_use) or bench.batching.tree.reclaimable() == bench.pool.in_use


def test_a_reader_that_raises_ends_its_request_only() -> None:
    bench = Bench()
    asked, other = bench.add(prompt(40), max_tokens=50), bench.add(prompt(30, 1), max_tokens=20)
    asked.request.ahead = lambda: 1 / 0
    bench.finish()
    assert isinstance(asked.request.error, ZeroDivisionError)
    bench.asked.remove(asked)
    bench.check()
    assert other.request.done
