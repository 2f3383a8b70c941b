"""Prompts by their beginnings, and which replica they go to."""

from __future__ import annotations

import pytest

from rase.cluster.prefixes import BLOCK, MOST, SPILL, Affinity, keys_of
from rase.completion import ChatMessage, TextRequest

SYSTEM = "You are one of several careful assistants. " * 20


def chat(*contents: str) -> tuple[bytes, ...]:
    roles = ("system", "user", "assistant", "user")
    return keys_of(
        TextRequest(messages=[ChatMessage(role, text) for role, text in zip(roles, contents, strict=False)])
    )


def text(prompt: str | list[int]) -> tuple[bytes, ...]:
    return keys_of(TextRequest(prompt=prompt))


def common(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def test_prompts_share_the_keys_of_what_they_share() -> None:
    one, other = chat(SYSTEM, "What is this?" * 30), chat(SYSTEM, "Who is that?" * 30)
    assert len(one) > common(one, other) == (len(SYSTEM) + len("\0system\0")) // BLOCK
    assert chat(SYSTEM, "Hi", "Hello", "More") == chat(SYSTEM, "Hi", "Hello", "More")
    assert common(chat("x" + SYSTEM), chat(SYSTEM)) == 0
    turns = chat(SYSTEM, "Hi " * 100, "Hello " * 100)
    assert turns[: len(chat(SYSTEM, "Hi " * 100))] == chat(SYSTEM, "Hi " * 100), "a chat goes on where it was"


def test_every_kind_of_prompt_has_keys() -> None:
    assert len(text("a" * BLOCK * 3)) == 3 and text("a" * (BLOCK - 1)) == ()
    assert len(text(list(range(100)))) == 100 * 8 // BLOCK
    assert common(text([1] * 64 + [2] * 64), text([1] * 64 + [3] * 64)) == 4
    assert len(text("a" * BLOCK * (MOST + 9))) == MOST == len(text([7] * BLOCK * MOST))
    assert text("\ud800" * BLOCK), "half a character is for the tokenizer to refuse"
    parts = TextRequest(messages=[ChatMessage("user", [{"type": "text", "text": SYSTEM}])])  # type: ignore[arg-type]
    assert len(keys_of(parts)) >= len(SYSTEM) // BLOCK


def test_a_beginning_stays_where_it_went_and_new_ones_spread() -> None:
    affinity, idle = Affinity(), {"a": 0, "b": 0}
    went = {}
    for number in range(6):
        keys = chat(f"Number {number}. " + SYSTEM)
        went[number] = affinity.rank(keys, idle)[0]
        affinity.learn(keys, went[number][0])
    assert sorted(name for (name,) in went.values()) == ["a", "a", "a", "b", "b", "b"]
    for number, group in went.items():
        assert affinity.rank(chat(f"Number {number}. " + SYSTEM, "And now?" * 40), idle)[0] == group


def test_a_busy_replica_hands_on_and_then_both_know() -> None:
    affinity, keys = Affinity(), chat(SYSTEM)
    affinity.learn(keys, "a")
    assert affinity.rank(keys, {"a": SPILL, "b": 0}) == [["a"], ["b"]]
    assert affinity.rank(keys, {"a": SPILL + 1, "b": 0}) == [["b"], ["a"]]
    affinity.learn(keys, "b")
    assert affinity.rank(keys, {"a": 1, "b": 0}) == [["a", "b"]], "Serve takes the one that is less busy"
    longer = chat(SYSTEM, "Something else " * 40)
    affinity.learn(longer, "b")
    assert affinity.rank(longer, {"a": 0, "b": 3}) == [["b"], ["a"]]


def test_a_full_replica_gets_nothing() -> None:
    affinity, keys = Affinity(), chat(SYSTEM)
    affinity.learn(keys, "a")
    assert affinity.rank(keys, {"a": 3, "b": 3}, full=4) == [["a"], ["b"]]
    assert affinity.rank(keys, {"a": 4, "b": 3}, full=4) == [["b"]]
    assert affinity.rank(keys, {"a": 4, "b": 5}, full=4) == []


def test_what_has_no_beginning_goes_where_least_waits() -> None:
    assert Affinity().rank((), {"a": 2, "b": 1}) == [["b"], ["a"]] and Affinity().rank((), {}) == []


def test_replicas_that_are_gone_are_forgotten_and_so_is_the_oldest() -> None:
    affinity, keys = Affinity(), chat(SYSTEM)
    affinity.learn(keys, "a")
    affinity.keep(["b", "c"])
    assert not affinity._seen and not affinity._sizes
    small = Affinity(capacity=4)
    small.learn(text("a" * BLOCK * 4), "a")
    small.learn(text("b" * BLOCK * 3), "b")
    assert len(small._seen) == 4 and small._sizes == {"a": 1, "b": 3}


@pytest.mark.parametrize("known", [1, 5])
def test_the_longest_known_beginning_wins(known: int) -> None:
    affinity, keys = Affinity(), text("".join(f"{n:>{BLOCK}}" for n in range(8)))
    affinity.learn(keys[:known], "a")
    affinity.learn(keys[: known + 1], "b")
    assert affinity.rank(keys, {"a": 0, "b": 1})[0] == ["b"]
