"""The choice of experts: the highest, ties to the lowest id, gates in ascending order, one set of bits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.support import F32, NAMES, VARIANTS, assert_same_bits, empty

SCALAR = VARIANTS[NAMES.index("scalar")]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)


def route(variant, logits: NDArray, k: int, renormalize: bool = True, scale: float = 1.0) -> NDArray:
    out = empty(2 * k, F32)
    variant.route(logits, renormalize, scale, out)
    return out


@every_variant
@pytest.mark.parametrize("renormalize", [True, False], ids=["renormalized", "softmax"])
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (5, 2), (8, 8), (16, 1), (60, 4), (128, 8), (130, 17)])
def test_choices_and_gates(variant, experts: int, k: int, renormalize: bool) -> None:
    rng = np.random.default_rng(experts)
    for _ in range(20):
        logits = rng.normal(0, 3, experts).astype(F32)
        found = route(variant, logits, k, renormalize, 1.5)
        chosen = np.sort(np.argsort(-logits, kind="stable")[:k])
        assert np.array_equal(found[:k], chosen)
        p = np.exp(logits.astype(np.float64))
        exact = 1.5 * p[chosen] / (p[chosen] if renormalize else p).sum()
        assert np.abs(found[k:] - exact).max() <= 2e-6
        assert_same_bits(found, route(SCALAR, logits, k, renormalize, 1.5), "against the scalar variant")


@every_variant
def test_ties_go_to_the_lowest_expert(variant) -> None:
    logits = np.array([1, 2, 2, 0, 2, 2, 1], F32)
    for k, expected in ((1, [1]), (3, [1, 2, 4]), (5, [0, 1, 2, 4, 5]), (6, [0, 1, 2, 4, 5, 6])):
        assert list(route(variant, logits, k)[:k]) == expected
    assert list(route(variant, np.array([0.0, -0.0, 0.0], F32), 2)[:2]) == [0, 1]


@every_variant
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_gates_and_breaks_nothing(variant, bad: float) -> None:
    for at in range(5):
        logits = np.arange(5, dtype=F32)
        logits[at] = bad
        found = route(variant, logits, 3)
        assert np.isnan(found[3:]).all() and set(found[:3]) <= set(range(5))
    found = route(variant, np.full(4, np.nan, F32), 4)
    assert np.isnan(found[4:]).all() and set(found[:4]) <= set(range(4))
