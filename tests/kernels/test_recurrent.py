"""Kernels of recurrent layers: near float64, one set of bits over variants and cuts of the tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rase.testing.programs import nmse
from tests.kernels.support import F32, NAMES, VARIANTS, assert_same_bits, empty

SCALAR = VARIANTS[NAMES.index("scalar")]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
NEAR = 1e-12


def numbers(seed, *shape, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, shape).astype(F32)


@every_variant
@pytest.mark.parametrize("group", [1, 8, 16, 31, 128])
def test_l2_norm(variant, group):
    x, eps = numbers(group, 3 * group), 1e-6
    x[:group] *= 1e-4  # where eps counts
    found, same = empty(x.size, F32), empty(x.size, F32)
    variant.l2_norm(x, group, eps, found)
    runs = x.astype(np.float64).reshape(3, group)
    expected = runs / np.sqrt((runs**2).sum(1, keepdims=True) + eps)
    assert nmse(found.reshape(3, group), expected) < NEAR
    SCALAR.l2_norm(x, group, eps, same)
    assert_same_bits(found, same, "against the scalar variant")


@every_variant
def test_decay(variant):
    x = np.concatenate(
        [numbers(1, 40, scale=6), [-200, -30, 0, 30, 39, 41, 90, 3e38, -3e38, np.inf, -np.inf]]
    )
    x = x.astype(F32)
    rate, bias = -np.abs(numbers(2, x.size, scale=4)) - F32(0.01), numbers(3, x.size)
    found, same = empty(x.size, F32), empty(x.size, F32)
    variant.decay(x, rate, bias, found)
    exact = np.exp(rate.astype(float) * np.logaddexp(0, x.astype(float) + bias.astype(float)))
    assert np.all(np.abs(found - exact) <= 6e-8 * exact + 1e-45)
    SCALAR.decay(x, rate, bias, same)
    assert_same_bits(found, same, "against the scalar variant")
    variant.decay(np.array([np.nan], F32), rate[:1], bias[:1], found[:1])
    assert np.isnan(found[0])


@every_variant
def test_sigmoid(variant):
    x = np.concatenate([numbers(1, 100, scale=8), [0, 88, -88, 200, -200, np.inf, -np.inf]]).astype(F32)
    found, same = empty(x.size, F32), empty(x.size, F32)
    variant.unary("sigmoid", x, found)
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.all(np.abs(found - exact) <= 3e-7 * exact + 2e-38)
    SCALAR.unary("sigmoid", x, same)
    assert_same_bits(found, same, "against the scalar variant")


def delta_case(tokens, k_dim, v_dim):
    q, k = numbers(1, tokens, k_dim), numbers(2, tokens, k_dim)
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True).astype(F32) for x in (q, k))
    rng = np.random.default_rng(3)
    decay, beta = rng.uniform(0.3, 1, tokens).astype(F32), rng.uniform(0, 1, tokens).astype(F32)
    return q, k, numbers(4, tokens, v_dim), decay, beta, 0.25, numbers(5, k_dim, v_dim)


def blocks(state):
    """The ways from (k_dim, v_dim) to the kernel's blocks of columns, 64 wide and then 16, and back."""
    k_dim, v_dim = state.shape
    edges = [*range(0, v_dim // 64 * 64, 64), *range(v_dim // 64 * 64, v_dim, 16), v_dim]
    return [(slice(a * k_dim, b * k_dim), slice(a, b)) for a, b in pairwise(edges)]


def run_delta(variant, q, k, v, decay, beta, scale, given, cuts=()):
    state, out = empty(given.shape, F32), empty(v.shape, F32)
    for place, columns in blocks(given):
        state.reshape(-1)[place] = given[:, columns].reshape(-1)
    for first, last in zip([0, *cuts], [*cuts, len(q)], strict=True):
        part = slice(first, last)
        variant.delta_rule(q[part], k[part], v[part], decay[part], beta[part], scale, state, out[part])
    found = np.empty_like(given)
    for place, columns in blocks(given):
        found[:, columns] = state.reshape(-1)[place].reshape(len(given), -1)
    return out, found


@every_variant
@pytest.mark.parametrize("v_dim", [1, 16, 24, 64, 80, 128])
@pytest.mark.parametrize(("tokens", "k_dim"), [(1, 1), (3, 16), (7, 33), (20, 128)])
def test_delta_rule(variant, tokens, k_dim, v_dim):
    case = delta_case(tokens, k_dim, v_dim)
    out, state = run_delta(variant, *case)
    q, k, v, decay, beta, scale, s = (np.asarray(each, np.float64) for each in case)
    expected = []
    for t in range(tokens):
        s = s * decay[t]
        s = s + np.outer(k[t], beta[t] * (v[t] - k[t] @ s))
        expected.append(scale * (q[t] @ s))
    assert nmse(out, np.array(expected)) < NEAR and nmse(state, s) < NEAR
    for found, same in zip((out, state), run_delta(SCALAR, *case), strict=True):
        assert_same_bits(found, same, "against the scalar variant")


@every_variant
def test_a_cut_between_tokens_changes_no_bit(variant):
    case = delta_case(20, 33, 80)
    for found, whole in zip(
        run_delta(variant, *case, cuts=(1, 2, 13)), run_delta(variant, *case), strict=True
    ):
        assert_same_bits(found, whole, "in four calls")
