"""StopText against a naive oracle."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rase.text.stream import StopText

_letters = st.text(alphabet="ab", max_size=40)
_stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=3)


def oracle(text: str, stops: list[str]) -> tuple[str, bool]:
    """Grow the text character by character until it ends with a stop; cut the longest such stop off."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def shown(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    stream = StopText(stops)
    out = [stream.push(piece) for piece in pieces]
    return [*out, stream.finish()], stream.stopped


@settings(max_examples=400)
@given(_letters, _stops, st.data())
def test_any_cut_of_the_text_gives_what_the_oracle_gives(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    out, stopped = shown(pieces, stops)
    assert ("".join(out), stopped) == oracle(text, stops)


@given(_letters, _stops)
def test_only_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    stream, seen, out = StopText(stops), "", ""
    for character in text:
        out += stream.push(character)
        seen += character
        if stream.stopped:
            return
        held = seen[len(out) :]
        assert out + held == seen
        assert held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("aaab", ["aab"], "a"),
        ("abababac", ["ababac"], "ab"),
        ("aabaabaac", ["aabaac"], "aab"),
        ("xaby", ["ab", "xabz"], "x"),  # the first to be complete
        ("xaby", ["b", "ab"], "x"),  # of two that end together the longer
        ("xa", ["ab"], "xa"),
    ],
)
def test_stops_that_overlap_themselves_and_others(text: str, stops: list[str], wanted: str) -> None:
    assert "".join(shown(list(text), stops)[0]) == "".join(shown([text], stops)[0]) == wanted


def test_nothing_is_shown_after_a_stop() -> None:
    stream = StopText(["END"])
    assert stream.push("one END two") == "one "
    assert stream.stopped
    assert stream.push("three") == ""
    assert stream.finish() == ""


def test_the_cost_per_character_does_not_depend_on_what_is_held() -> None:
    # A stop that almost matches everywhere makes a search that starts again at each place quadratic.
    stop = "a" * 50_000 + "b"
    stream = StopText([stop])
    started = time.process_time()
    shown_text = "".join(stream.push("a") for _ in range(200_000)) + stream.finish()
    assert shown_text == "a" * 200_000
    assert time.process_time() - started < 5
