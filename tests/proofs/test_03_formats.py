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
VARIANT = [name for name, missing in kernels.variants() if missing is None][-1]
SHARE = 0.75


@pytest.mark.parametrize("name", NEAREST)
def test_as_fast_as_the_nearest_format(name: str, figure: Callable[[str], None]) -> None:
    def show(pair: Pair) -> str:
        decode, prefill = pair.ratios
        return (
            f"{name} {decode:.2f} of {pair.nearest} in decode ({pair.decode[0]:.1f} GB/s), "
            f"{prefill:.2f} in prefill ({pair.prefill[0]:.0f} GMAC/s) on {VARIANT}"
        )

    variant = kernels.Variant(VARIANT)
    until(lambda pair: min(pair.ratios) >= SHARE, lambda: compare(variant, name), show, figure, 3)
