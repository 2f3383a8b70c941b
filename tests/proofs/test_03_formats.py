"""Proof 7 of list 03: codebook, ternary and AWQ formats are as fast as the older ones of the nearest width.

Decode counts in bytes of the file's weights a second from memory, prefill in tokens a second: within 25 %.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.kernels import NEAREST, Pair, compare
from rase._kernels import kernels
from tests.support.gates import until

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
RUNNABLE = [name for name, missing in kernels.variants() if missing is None]
CASES = [(RUNNABLE[-1], name) for name in NEAREST]
if "avx512vbmi" in RUNNABLE[:-1]:  # processors without AMX that hold codebooks in registers; W4A16 has none
    CASES += [("avx512vbmi", name) for name in NEAREST if name != "W4A16"]
SHARE = 0.75


@pytest.mark.parametrize(("isa", "name"), CASES)
def test_as_fast_as_the_nearest_format(isa: str, name: str, figure: Callable[[str], None]) -> None:
    def show(pair: Pair) -> str:
        decode, prefill = pair.ratios
        return (
            f"{name} {decode:.2f} of {pair.nearest} in decode ({pair.decode[0]:.1f} GB/s), "
            f"{prefill:.2f} in prefill ({pair.prefill[0]:.0f} GMAC/s) on {isa}"
        )

    variant = kernels.Variant(isa)
    until(lambda pair: min(pair.ratios) >= SHARE, lambda: compare(variant, name), show, figure, 3)
