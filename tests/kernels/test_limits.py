"""The yardsticks of speed read all bytes, do the operations they count, and use the threads they get."""

from __future__ import annotations

import time

import pytest

kernels = pytest.importorskip("rase._kernels.kernels")
limits = pytest.importorskip("rase._kernels.limits")
ISAS = [name for name, missing in kernels.variants() if missing is None]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_read_bandwidth_is_what_the_clock_says(isa, threads):
    """The inner check that what was read is what was written raises when a byte is skipped."""
    nbytes, passes = 24 << 20, 3
    start = time.perf_counter()
    found = limits.read_bandwidth(kernels.Variant(isa), threads, nbytes, passes)
    elapsed = time.perf_counter() - start
    assert found >= passes * (nbytes - threads * 4096) / elapsed / 1e9, (
        "faster than all passes and the filling together"
    )


@pytest.mark.parametrize("isa", ISAS)
def test_fma_peak_is_at_least_one_vector_every_few_cycles(isa):
    found = limits.fma_peak(kernels.Variant(isa), 1, 2_000_000, 3)
    assert 0.01 < found < 10_000, f"{found} GFLOP/s on one core"


def test_wider_vectors_reach_a_higher_peak():
    if len(ISAS) < 2:
        pytest.skip("this machine has one variant")
    slow, fast = (limits.fma_peak(kernels.Variant(isa), 1, 2_000_000, 5) for isa in (ISAS[0], ISAS[-1]))
    assert fast > 4 * slow, "emulated FMA is many times slower than the instruction"


@pytest.mark.parametrize("isa", ISAS)
def test_a_product_of_tiles_takes_nanoseconds_where_there_are_tiles(isa):
    """The inner check of what the products came to raises when one is left out."""
    found = limits.tile_times(kernels.Variant(isa), 2, 2)
    assert (found is None) == (isa != "amx")
    assert found is None or all(0.5 < each < 1000 for each in found), f"{found} ns"


@pytest.mark.parametrize("arguments", [(0,), (-1,), (1, 4095), (1, 1 << 20, 0)])
def test_counts_below_one_are_refused(arguments):
    with pytest.raises(ValueError):
        limits.read_bandwidth(kernels.Variant("scalar"), *arguments)
    if len(arguments) == 1:
        with pytest.raises(ValueError):
            limits.fma_peak(kernels.Variant("scalar"), *arguments)
        with pytest.raises(ValueError):
            limits.tile_times(kernels.Variant("scalar"), *arguments)
