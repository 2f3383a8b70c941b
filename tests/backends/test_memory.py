"""Arenas: memory from the system, aligned, zeroed, and on request there before it is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.backends._lowering import Buffers
from rase.backends._memory import Arena


def resident(address: int) -> int:
    """Bytes of the mapping around ``address`` that the system holds in memory."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            first, end = (int(part, 16) for part in head.split("-"))
            here = first <= address < end
        elif here and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what is resident")
def test_memory_can_be_there_before_it_is_used():
    arena = Arena(24 << 20, "a test")
    arena.take(100)[:] = 7
    assert resident(arena.address) < 8 << 20, "nothing is taken before it is used"
    thread = arena.populate()
    thread.join(30)
    if resident(arena.address) < 8 << 20:
        pytest.skip("this system does not get memory ahead of its use (Linux 5.14 does)")
    assert resident(arena.address) >= 24 << 20
    assert arena.take(100).sum() == 0 and arena._bytes[:100].tolist() == [7] * 100, "and nothing changed"


@given(
    st.lists(st.tuples(st.sampled_from(["take", "leave", "meet"]), st.integers(1, 200), st.integers(1, 3)))
)
def test_places_in_use_never_overlap(steps):
    buffers, live, leaving = Buffers(max_rows=3), [], []
    for step, size, repeats in steps:
        if step == "take":
            place = buffers.places[buffers.take(size, repeats)]
            assert (
                len(place) >= 12 * size * repeats and place.start % 64 == 0 and place.stop <= buffers.nbytes
            )
            for slot in live + leaving:
                other = buffers.places[slot]
                assert place.stop <= other.start or other.stop <= place.start
            live.append(len(buffers.places) - 1)
        elif step == "leave" and live:
            leaving.append(live.pop(size % len(live)))
            buffers.leave(leaving[-1])
        else:
            buffers.meet()
            leaving.clear()


def test_what_one_value_left_holds_several_others():
    buffers = Buffers(max_rows=1)
    first, behind = buffers.take(64), buffers.take(16)
    buffers.leave(first)
    assert buffers.places[buffers.take(16)].start >= 320, "nobody may write there before all workers met"
    buffers.meet()
    places = [buffers.places[buffers.take(32)] for _ in range(2)]
    assert [place.start for place in places] == [0, 128], "one large place became two"
    assert buffers.places[behind].start == 256
