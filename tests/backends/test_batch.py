"""Every rule of a batch is checked, and what a rule allows passes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rase.backends.base import GENERATED, PROMPT, Batch, CompileOptions
from rase.backends.check import windows
from rase.errors import BackendError, ContextLengthExceeded, InvalidRequest, InvalidSetting
from rase.graph.ops import CacheGroup
from rase.testing.tiny import TINY_LLAMA

FULL = TINY_LLAMA.graph()
WINDOW = TINY_LLAMA.but(window=40).graph()


def program(graph=FULL):
    return SimpleNamespace(
        graph=graph,
        page_tokens=32,
        reserved_pages=(8,) * len(graph.caches),
        max_batch_tokens=64,
        states=None,
    )


def batch(positions, sequences=None, roles=None, tables=((0, 1, 2, 3),), rows=(0,)):
    n = len(positions)
    return Batch(
        ids=np.arange(n, dtype=np.int32),
        positions=np.array([positions], np.int32),
        sequences=np.array(sequences or [0] * n, np.int32),
        page_tables=np.array([tables], np.int32),
        roles=np.array(roles or [PROMPT] * n, np.uint8),
        logits_rows=np.array(rows, np.int32),
    )


P, G = PROMPT, GENERATED
TWO = ((0, 1, -1, -1), (4, 5, -1, -1))

GOOD = {
    "one token": batch([5]),
    "a prompt": batch(range(64)),
    "a decode step of two sequences": batch([40, 3], [0, 1], [G, G], TWO),
    "decode and prompt": batch([40, 0, 1], [0, 1, 1], [G, P, P], TWO),
    "both roles of one sequence, recomputed": batch([2, 3, 0, 1, 4], roles=[G, G, P, P, P]),
    "no logits": batch([0, 1], rows=()),
    "a shared page that is only read": batch([40, 40], [0, 1], tables=((0, 1), (0, 2))),
}

BAD = {
    "do not ascend": batch([4, 3]),
    "do not ascend (twice)": batch([4, 4]),
    "a generated token follows a prompt token": batch([0, 40], [1, 0], [P, G], TWO),
    "not contiguous": batch([0, 0, 1], [0, 1, 0], tables=TWO),
    "holds one position twice": batch([2, 0, 1, 2], roles=[G, P, P, P]),
    "neither prompt nor generated": batch([0], roles=[2]),
    "a sequence has no page table": batch([0], [1]),
    "a page table is too short": batch([128]),
    "a page id is beyond the reserved pages": batch([0], tables=((8,),)),
    "a page that a token sees is missing": batch([40], tables=((-1, 1),)),
    "a page that a token sees is missing (of many)": batch([40, 41], tables=((-1, 1),)),
    "a page that a token sees is missing (its own)": batch([31, 32], tables=((0, -1),)),
    "belongs to two places": batch([40], tables=((1, 1),)),
    "belongs to two places (of many)": batch([40, 41], tables=((1, 1),)),
    "belongs to two places (of two)": batch([40, 41], [0, 1], tables=((0, 1), (2, 1))),
    "not a token of the batch": batch([0], rows=[1]),
    "a position is negative": batch([-1, 0]),
    "tokens": batch(range(65)),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_rules_allow_passes(name):
    GOOD[name].check(program())


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_is_named(name):
    with pytest.raises(BackendError, match=name.split(" (")[0]):
        BAD[name].check(program())


def test_what_a_caller_can_cause_has_the_callers_errors():
    for ids in ([0, -1], [101, 0]):
        wrong = batch([0, 1])
        wrong.ids[:] = ids
        with pytest.raises(InvalidRequest, match="0 to 100") as caught:
            wrong.check(program())
        assert caught.value.param == "ids"
    with pytest.raises(ContextLengthExceeded) as caught:
        batch([1024]).check(program())
    assert (caught.value.prompt_tokens, caught.value.context_length) == (1025, 1024)


@pytest.mark.parametrize("name", ["ids", "positions", "sequences", "page_tables", "roles", "logits_rows"])
def test_dtypes_shapes_and_layout_are_checked(name):
    for spoil in (
        lambda array: array.astype(np.int64),
        lambda array: array[None],
        lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    ):
        wrong = batch(range(4), rows=(0, 1))
        setattr(wrong, name, spoil(getattr(wrong, name)))
        with pytest.raises(BackendError, match="invalid batch"):
            wrong.check(program())


def test_a_window_needs_only_the_pages_that_it_sees():
    tables = ((-1, 1, 2, 3),)
    for positions in ([72], [72, 73]):  # position 72 sees 33 to 72
        batch(positions, tables=tables).check(program(WINDOW))
        with pytest.raises(BackendError, match="missing"):
            batch(positions, tables=tables).check(program(FULL))
    for positions in ([70], [70, 71]):  # position 70 sees 31 to 70
        with pytest.raises(BackendError, match="missing"):
            batch(positions, tables=tables).check(program(WINDOW))


def test_each_cache_group_has_its_own_rules():
    """A window group may have lost pages that a full group keeps; ids of different groups may be the same."""
    both = (CacheGroup("full", 1, 1, 4), CacheGroup("window", 1, 1, 4, 40))
    assert windows(SimpleNamespace(caches=both)) == [0, 40]
    two = program(SimpleNamespace(caches=both, vocab_size=101, context_length=1024, whole_input=False))
    tables = np.array([[[0, 1, 2, 3]], [[-1, 1, 2, 3]]], np.int32)
    for positions in ([72], [72, 73]):
        step = batch(positions)
        step.page_tables = tables
        step.check(two)
        step.page_tables = tables[::-1].copy()
        with pytest.raises(BackendError, match="missing"):
            step.check(two)
        step.page_tables = np.array([[[0, 1, 2, 3]], [[-1, 2, 2, 3]]], np.int32)
        with pytest.raises(BackendError, match="two places"):
            step.check(two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads"),
        ({"max_batch_tokens": 0}, "max_batch_tokens"),
        ({"prefill": "int4"}, "auto, int8, f32, bf16"),
        ({"numerics": "exact"}, "fast, portable"),
        ({"kv": "q4_0"}, "f16, q8_0"),
        ({"numerics": "portable", "prefill": "f32"}, "RASE_PREFILL"),
    ],
)
def test_compile_options_are_checked(options, message):
    with pytest.raises(InvalidSetting, match=message):
        CompileOptions(**options)


def full_check_accepts(step: Batch, graph, monkeypatch) -> bool:
    from rase.backends import check

    with monkeypatch.context() as patch:
        patch.setattr(check, "_accepts_decode", lambda *_: False)
        try:
            step.check(program(graph))
            return True
        except (BackendError, ContextLengthExceeded, InvalidRequest):
            return False


def test_one_token_is_accepted_exactly_when_the_full_check_accepts_it(monkeypatch):
    """The compiled short path and the checks that explain are one rule, over random right and wrong steps."""
    from rase.backends import check

    rng = np.random.default_rng(5)
    outcomes = []
    for graph in (FULL, WINDOW):
        for _ in range(1500):
            tables = rng.permutation(8).reshape(2, 4).astype(np.int32)
            for _ in range(rng.integers(0, 3)):
                tables[rng.integers(2), rng.integers(4)] = rng.integers(-1, 9)
            position, sequence, role, rows = rng.integers(-1, 140), *rng.integers(0, 3, 3)
            step = batch([position], [sequence], [role], tables, [0] * rows)
            step.ids[0] = rng.choice([-1, 0, 50, 100, 101])
            accepted = check._accepts_decode(step, program(graph))
            assert accepted == full_check_accepts(step, graph, monkeypatch), step
            outcomes.append(accepted)
    assert 100 < sum(outcomes) < 2900, "both outcomes must be seen"


def test_a_decode_step_is_accepted_exactly_when_the_full_check_accepts_it(monkeypatch):
    """One generated token of each of three sequences, with anything wrong now and then."""
    from rase.backends import check

    rng = np.random.default_rng(6)
    outcomes = []
    for graph in (FULL, WINDOW):
        for _ in range(1500):
            tables = rng.permutation(np.arange(12) % 11 if rng.random() < 0.3 else np.arange(12))
            tables = tables.reshape(3, 4).astype(np.int32)
            if rng.random() < 0.4:
                tables[rng.integers(3), rng.integers(4)] = -1
            rows = np.sort(rng.choice(3, rng.integers(1, 4), replace=False)).tolist()
            n = len(rows)
            step = batch(rng.integers(0, 128, n).tolist(), rows, [G] * n, tables, range(n))
            which = rng.integers(n)
            for array, values in (
                (step.ids, (-1, 50, 101)), (step.positions[0], (-1, 128)), (step.logits_rows, (-1, 3)),
            ):  # fmt: skip
                if rng.random() < 0.08:
                    array[which] = rng.choice(values)
            made = program(graph)
            made.reserved_pages = (12 - int(rng.random() < 0.1),)
            accepted = check._accepts_decode(step, made)
            with monkeypatch.context() as patch:
                patch.setattr(f"{__name__}.program", lambda graph, made=made: made)
                assert accepted == full_check_accepts(step, graph, monkeypatch), step
            outcomes.append(accepted)
    assert 300 < sum(outcomes) < 2700, "both outcomes must be seen"
