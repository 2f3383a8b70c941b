"""Attention over float16 pages: close to float64, the same bits in every variant and split of the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.support import F32, NAMES, VARIANTS, assert_same_bits, empty

SCALAR = VARIANTS[NAMES.index("scalar")]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
PAGE = 32


def cache(positions: int, head_dim: int, rng: np.random.Generator) -> NDArray:
    """Pages (pages, 32, head_stride) of float16 bits: random for ``positions``, then NaN; padded with 0."""
    stride = -(-head_dim // 16) * 16
    rows = np.full((-(-positions // PAGE) * PAGE, stride), np.nan, dtype=np.float16)
    rows[:, head_dim:] = 0
    rows[:positions, :head_dim] = rng.normal(0, 1, (positions, head_dim)).astype(np.float16)
    return rows.view(np.uint16).reshape(-1, PAGE, stride)


def attend(variant, q: NDArray, k: NDArray, v: NDArray, first: int, window: int = 0) -> NDArray:
    out = empty(q.shape, F32)
    variant.attention(np.ascontiguousarray(q), k, v, first, q.shape[2] ** -0.5, window, out)
    return out


def exact(q: NDArray, k: NDArray, v: NDArray, first: int, window: int) -> NDArray:
    """The softmax over the visible positions in float64."""
    dim = q.shape[2]
    keys = k.reshape(-1, k.shape[2]).view(np.float16)[:, :dim].astype(np.float64)
    values = v.reshape(-1, v.shape[2]).view(np.float16)[:, :dim].astype(np.float64)
    out = np.empty(q.shape)
    for t in range(len(q)):
        low = max(0, first + t - window + 1) if window else 0
        seen = slice(low, first + t + 1)
        scores = q[t].astype(np.float64) @ keys[seen].T * dim**-0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[t] = weights / weights.sum(axis=1, keepdims=True) @ values[seen]
    return out


CASES = [  # first position, tokens, query heads, head_dim, window
    (0, 1, 1, 64, 0), (0, 17, 3, 64, 0), (250, 12, 4, 64, 0), (255, 2, 1, 20, 0), (256, 1, 2, 16, 0),
    (511, 5, 3, 80, 0), (700, 33, 1, 32, 0), (3, 9, 2, 64, 1), (100, 20, 3, 64, 7), (250, 20, 2, 64, 256),
    (600, 18, 2, 48, 300), (515, 3, 4, 64, 4),
]  # fmt: skip


@every_variant
@pytest.mark.parametrize("case", CASES, ids=[f"at{c[0]}x{c[1]}-g{c[2]}-d{c[3]}-w{c[4]}" for c in CASES])
def test_attention_is_accurate_and_the_same_everywhere(variant, case: tuple[int, int, int, int, int]) -> None:
    first, tokens, group, dim, window = case
    rng = np.random.default_rng(first + tokens)
    k, v = cache(first + tokens, dim, rng), cache(first + tokens, dim, rng)
    q = rng.normal(0, 1.5, (tokens, group, dim)).astype(F32)
    found = attend(variant, q, k, v, first, window)
    assert np.abs(found - exact(q, k, v, first, window)).max() <= 4e-6
    assert_same_bits(found, attend(SCALAR, q, k, v, first, window), "against the scalar variant")
    for split in {1, tokens // 2, tokens - 1} - {0, tokens}:
        parts = [
            attend(variant, q[:split], k, v, first, window),
            attend(variant, q[split:], k, v, first + split, window),
        ]
        assert_same_bits(np.concatenate(parts), found, f"in two calls, {split} tokens first")
    for head in range(group):
        alone = attend(variant, q[:, head : head + 1], k, v, first, window)
        assert_same_bits(alone[:, 0], found[:, head], f"query head {head} alone")


@every_variant
@pytest.mark.parametrize("window", [0, 5, 40, 300])
@pytest.mark.parametrize("poison", [0x7E00, 0x7C00, 0xFC00], ids=["nan", "inf", "-inf"])
def test_what_the_mask_hides_does_not_matter(variant, window: int, poison: int) -> None:
    """Positions after the token and before its window may hold anything."""
    rng = np.random.default_rng(window)
    first, dim = 530, 64
    k, v = cache(first + 64, dim, rng), cache(first + 64, dim, rng)
    q = rng.normal(0, 1, (1, 3, dim)).astype(F32)
    clean = attend(variant, q, k, v, first, window)
    assert np.isfinite(clean).all()
    for pages in (k, v):
        rows = pages.reshape(-1, pages.shape[2])
        rows[first + 1 :, :dim] = poison
        rows[: max(0, first - window + 1) if window else 0, :dim] = poison
    assert_same_bits(attend(variant, q, k, v, first, window), clean, f"window {window}")


@every_variant
def test_large_scores_do_not_overflow(variant) -> None:
    """Scores in the thousands: the largest wins, nothing becomes NaN, other chunks add nothing."""
    first, dim = 600, 16
    rng = np.random.default_rng(0)
    k, v = cache(first + 1, dim, rng), cache(first + 1, dim, rng)
    k.reshape(-1, dim)[: first + 1] = np.float16(1).view(np.uint16)
    k.reshape(-1, dim)[300] = np.float16(2).view(np.uint16)
    q = np.full((1, 1, dim), 400, F32)
    found = attend(variant, q, k, v, first)
    assert np.array_equal(found[0, 0], v.reshape(-1, dim)[300].view(np.float16).astype(F32))
