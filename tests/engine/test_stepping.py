"""A batch that goes on is the batch that would be made anew; models take turns in order."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from rase.backends.base import GENERATED, PROMPT
from rase.engine.kv_cache import ABSENT
from rase.engine.stepping import Batches, Rows, make_batch
from rase.engine.turns import Turns


class Pages:
    """Tables of two cache groups, as long as ``tokens`` take; the second group leaves pages behind."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.tables, self.changes = rng, [[], []], 0

    def reserve(self, tokens: int) -> None:
        while 32 * len(self.tables[0]) < tokens:
            for table in self.tables:
                table.append(int(self.rng.integers(1000)))
            self.changes += 1
        if len(self.tables[1]) > 2 and self.tables[1][-3] != ABSENT:
            self.tables[1][-3] = ABSENT
            self.changes += 1


def same(found, expected) -> None:
    """All but the width of tables, which may be that of an earlier step."""
    for name in ("ids", "positions", "sequences", "roles", "logits_rows"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    width = expected.page_tables.shape[2]
    np.testing.assert_array_equal(found.page_tables[:, :, :width], expected.page_tables)
    assert (found.page_tables[:, :, width:] == ABSENT).all()


def test_a_batch_that_goes_on_is_the_one_that_would_be_made_anew():
    rng = np.random.default_rng(7)
    batches, made, kept = Batches(), [], 0
    sequences = [SimpleNamespace(tokens=[1] * n, pages=Pages(rng)) for n in (5, 40, 31, 70)]
    for step in range(300):
        if step % 50 == 49:  # somebody leaves, another one joins
            sequences.pop(int(rng.integers(4)))
            sequences.append(SimpleNamespace(tokens=[2] * int(rng.integers(1, 90)), pages=Pages(rng)))
        if step % 37 == 36:  # preempted: the same sequence with new pages
            sequences[1].pages = Pages(rng)
        parts = []
        for sequence in sequences:
            sequence.tokens.append(int(rng.integers(100)))
            sequence.pages.reserve(len(sequence.tokens))
            parts.append(Rows(sequence, len(sequence.tokens) - 1, 1, GENERATED, [], True, True))
        if step % 41 == 40:
            parts[-1].drafts = [3, 4]
            sequences[-1].pages.reserve(len(sequences[-1].tokens) + 2)
        found = batches.make(parts)
        same(found, make_batch(parts))
        kept += any(found is other for other in made[-1:])
        made.append(found)
    assert kept > 200, "most steps change numbers only"


def test_a_prompt_is_never_mistaken_for_a_step_that_goes_on():
    batches = Batches()
    sequence = SimpleNamespace(tokens=[1, 2, 3], pages=Pages(np.random.default_rng(1)))
    sequence.pages.reserve(3)
    decode = Rows(sequence, 2, 1, GENERATED, [], True, True)
    prompt = Rows(sequence, 2, 1, PROMPT, [], False, True)
    first = batches.make([decode])
    assert batches.make([decode]) is first
    assert batches.make([prompt]).roles.tolist() == [PROMPT]
    assert batches.make([decode]).roles.tolist() == [GENERATED]


def test_turns_are_taken_one_by_one_in_order_of_arrival():
    turns, inside, order = Turns(), [], []

    def work(name: int) -> None:
        for _ in range(200):
            with turns:
                inside.append(name)
                assert len(inside) == 1
                inside.pop()
        order.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(order) == [0, 1, 2, 3] and not turns.contended

    def wait(name: str) -> None:
        with turns:
            order.append(name)

    order.clear()
    with turns:
        waiting = []
        for name in "abc":
            waiting.append(threading.Thread(target=wait, args=(name,)))
            waiting[-1].start()
            until = time.monotonic() + 10
            while len(turns._line) < 1 + len(waiting) and time.monotonic() < until:
                time.sleep(0.001)
        assert turns.contended and order == []
    for thread in waiting:
        thread.join(10)
    assert order == ["a", "b", "c"]


def test_who_is_interrupted_while_waiting_blocks_nobody(monkeypatch):
    class Interrupted:
        def get(self) -> None:
            raise KeyboardInterrupt

    turns = Turns()
    with turns:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("rase.engine.turns.SimpleQueue", Interrupted)
            turns.__enter__()
        assert not turns.contended
    with turns:
        assert not turns.contended
