"""One batch at a time, and no interrupt that leaves a program claimed."""

from __future__ import annotations

import pytest

from rase.backends.cpu import CpuBackend
from rase.testing.interrupts import interrupted
from rase.testing.programs import assert_same_bits, run_chunks
from rase.testing.tiny import TINY_LLAMA

exclusive = pytest.importorskip("rase._kernels.exclusive")


def test_a_second_call_is_refused_and_the_first_goes_on():
    guard = exclusive.Exclusive()

    def outer():
        with pytest.raises(exclusive.InUse):
            guard.call(lambda: "inner")
        return "outer"

    assert guard.call(outer) == "outer"
    assert guard.call(lambda a, b: a + b, 1, 2) == 3


def test_a_call_that_raises_gives_the_claim_back():
    guard = exclusive.Exclusive()
    with pytest.raises(ZeroDivisionError):
        guard.call(lambda: 1 // 0)
    assert guard.call(lambda: 1) == 1


def test_interrupts_at_random_moments_leave_a_program_usable():
    """Rotary tables grow, batches run: whatever is interrupted, the next batch has the same bits."""
    ids = TINY_LLAMA.ids(20)
    with TINY_LLAMA.compile(CpuBackend(), threads=1) as program:
        expected = run_chunks(program, ids)
        interrupted(lambda: run_chunks(program, ids), [0.00005 * 1.2 ** (i % 20) for i in range(300)])
        assert_same_bits(run_chunks(program, ids), expected, "after 300 interrupts")
    program.close()
