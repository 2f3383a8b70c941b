"""Arenas: memory from the system, aligned, zeroed, and on request there before it is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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
