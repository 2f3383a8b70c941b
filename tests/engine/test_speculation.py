"""Prompt lookup: the copy that a slow search finds, constant work, learning when it pays."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.engine.speculation import COMMON_MAX, LONG, MAX_DRAFTS, SHORT, HitRate, PromptLookup, match_before


def search(ids: list[int]) -> int:
    """Oracle: the position after the last earlier occurrence of the last LONG (else SHORT) ids; 0 = none."""
    for count in (LONG, SHORT):
        for place in range(len(ids) - 1, count - 1, -1):
            if len(ids) >= count and ids[place - count : place] == ids[-count:]:
                return place
    return 0


def eager() -> PromptLookup:
    """Proposes wherever there is a match, as much as it may."""
    return PromptLookup(row_cost=0.0)


def copies(ids: list[int], place: int, count: int) -> list[int]:
    """Oracle: ``count`` ids from ``place`` on, running into themselves beyond the end."""
    out = list(ids)
    for offset in range(count):
        out.append(out[place + offset])
    return out[len(ids) :]


@given(st.lists(st.integers(0, 3), min_size=66, max_size=120), st.integers(0, 20))
def test_a_whole_prompt_gives_the_copy_that_a_slow_search_finds(ids: list[int], limit: int) -> None:
    place = search(ids)
    expected = copies(ids, place, min(limit, MAX_DRAFTS)) if place else []
    assert eager().propose(ids, limit) == expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=120), st.randoms(use_true_random=False))
def test_growing_by_any_steps_follows_a_copy_and_searches_where_it_ends(
    ids: list[int], chance: random.Random
) -> None:
    lookup, place, read = eager(), 0, 0
    while read < len(ids):
        grown = min(len(ids), read + chance.randint(1, 5))
        for end in range(read + 1, grown + 1):
            if place and ids[place] == ids[end - 1]:
                place += 1
            else:
                place = search(ids[:end])
        read = grown
        assert lookup.propose(ids[:read], 4) == (copies(ids[:read], place, 4) if place else [])


@given(st.lists(st.integers(0, 1), min_size=2, max_size=60), st.data())
def test_tokens_in_common_are_counted_backwards(ids: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(1, len(ids)))
    place = data.draw(st.integers(1, end))
    common = match_before(ids, place, end)
    assert ids[place - common : place] == ids[end - common : end]
    assert common in (COMMON_MAX, place) or ids[place - common - 1] != ids[end - common - 1]


def test_a_long_prompt_at_once_is_the_prompt_token_by_token() -> None:
    words = random.Random(1)
    ids = [words.randrange(12) for _ in range(700)]
    slow = eager()
    for end in range(1, len(ids) + 1):
        slow._push(ids, end)
    fast = eager()
    fast.propose(ids, 0)
    assert (fast._short, fast._long) == (slow._short, slow._long)


def test_the_largest_ids_keep_apart() -> None:
    top = 2**21 - 1
    ids = [0, top, 0, 7, top, top, top, 8, 1, 0, 0, 9, 0, top, 0]
    assert eager().propose(ids, 3) == [7, top, top]


def follow(lookup: PromptLookup, ids: list[int], answer: list[int], limit: int = 8) -> tuple[int, int, int]:
    """Play the scheduler: (steps, drafts, accepted drafts) that ``answer`` takes after the prompt ``ids``."""
    ids, end, steps, drafts, accepted = list(ids), len(ids) + len(answer), 0, 0, 0
    whole = ids + answer
    while len(ids) < end:
        proposed = lookup.propose(ids, min(limit, end - len(ids) - 1))
        agreed = 0
        while agreed < len(proposed) and proposed[agreed] == whole[len(ids) + agreed]:
            agreed += 1
        lookup.feedback(len(proposed), agreed)
        ids += whole[len(ids) : len(ids) + agreed + 1]
        steps, drafts, accepted = steps + 1, drafts + len(proposed), accepted + agreed
    return steps, drafts, accepted


def test_a_quoted_passage_takes_a_fraction_of_the_steps() -> None:
    words = random.Random(2)
    prompt = [words.randrange(5000) for _ in range(600)]
    steps, drafts, accepted = follow(PromptLookup(), prompt, prompt[100:400])
    assert steps < 300 / 4 and accepted > 0.95 * drafts


def test_without_repetition_nothing_is_proposed() -> None:
    ids = list(range(1000))
    assert follow(PromptLookup(), ids, list(range(2000, 2300))) == (300, 0, 0)


def misleading(words: random.Random, count: int) -> list[int]:
    """Pairs of ids that occur again and again, each time with another id after them."""
    return [
        id
        for _ in range(count)
        for id in (*words.choice([(1, 2), (3, 4), (5, 6)]), words.randrange(50, 5000))
    ]


def test_where_copies_mislead_it_stops_and_where_they_pay_again_it_starts_again() -> None:
    words = random.Random(3)
    lookup = PromptLookup(row_cost=0.1)  # eager enough to be misled at first
    prompt = [words.randrange(5000, 9000) for _ in range(400)] + misleading(words, 30)
    _, drafts, accepted = follow(lookup, prompt, (first := misleading(words, 300)))
    assert drafts - accepted < 60, f"{drafts} drafts for 900 tokens, {accepted} of them right"
    prompt += first
    before = lookup._rates[0].value
    assert before < 0.1, "it has learnt that short matches are worth nothing"
    steps, drafts, accepted = follow(lookup, prompt, prompt[50:250])
    assert steps < 60 and accepted > 0.9 * drafts


def test_a_loop_is_drafted_beyond_the_end_of_the_sequence() -> None:
    assert eager().propose([9, 1, 2, 3, 1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_limit_of_nothing_and_an_empty_sequence_are_fine() -> None:
    assert eager().propose([], 5) == []
    assert eager().propose([1, 1, 1, 1], 0) == []
    assert len(eager().propose([1] * 50, 10**6)) == MAX_DRAFTS


def test_a_rate_begins_at_its_prior_and_forgets() -> None:
    rate = HitRate(0.5)
    assert rate.value == 0.5
    for _ in range(200):
        rate.add(True)
    assert rate.value > 0.95
    for _ in range(60):
        rate.add(False)
    assert rate.value < 0.2


@pytest.mark.parametrize("length", [2_000, 40_000])
def test_work_for_a_token_does_not_grow_with_the_sequence(length: int) -> None:
    """Ids that recur all the time, where a search would be long: 2000 tokens within a second."""
    words = random.Random(4)
    ids, known = [words.randrange(6) for _ in range(2000)], [words.randrange(6) for _ in range(length)]
    lookup, start = PromptLookup(), time.process_time()
    for id in ids:
        known.append(id)
        lookup.propose(known, 8)
    assert time.process_time() - start < 1.0
