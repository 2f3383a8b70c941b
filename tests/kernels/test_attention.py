"""Attention over KV pages: near float64, the same bits in every variant and split of tokens, heads, chunk."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.support import F32, NAMES, VARIANTS, assert_same_bits, empty

SCALAR = VARIANTS[NAMES.index("scalar")]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
PAGE = 32
FORMATS = {"f16": 0, "q8_0": 1}
every_format = pytest.mark.parametrize("kv", FORMATS)


def cache(kv: str, rows: NDArray) -> NDArray:
    """Pages (pages, bytes) of one head that store ``rows`` (positions, head_dim); the rest is 0xFF, a NaN."""
    positions, head_dim = rows.shape
    pages = empty((-(-positions // PAGE), SCALAR.kv_bytes(FORMATS[kv], head_dim)), np.uint8)
    pages[:] = 0xFF
    for at, row in enumerate(rows):
        SCALAR.kv_store(FORMATS[kv], row, pages[at // PAGE], at % PAGE)
    return pages


def stored(kv: str, rows: NDArray) -> NDArray:
    """What the cache holds of ``rows``, as float64."""
    return rows.astype(np.float16).astype(np.float64) if kv == "f16" else q8_0(rows)


def q8_0(rows: NDArray) -> NDArray:
    """Rule R8's Q8_0, block by block: 32 elements of a row have one float16 scale, amax / 127."""
    found = np.empty(rows.shape)
    for j, row in enumerate(rows):
        for start in range(0, len(row), 32):
            block = row[start : start + 32]
            amax = np.abs(block).max()
            if not np.isfinite(amax):
                found[j, start : start + 32] = np.nan
            elif amax < F32(1e-33):
                found[j, start : start + 32] = 0
            else:
                codes = np.rint(block * (F32(127) / amax))
                found[j, start : start + 32] = codes.astype(np.float64) * np.float16(amax / F32(127))
    return found


def attend(
    variant,
    kv: str,
    q: NDArray,
    k: NDArray,
    v: NDArray,
    first: int,
    window: int = 0,
    span: int = 0,
    cap: float = 0,
) -> NDArray:
    out = empty(q.shape, F32)
    variant.attention(
        FORMATS[kv], np.ascontiguousarray(q), k, v, first, q.shape[2] ** -0.5, window, out, span, False, cap
    )
    return out


def exact(q: NDArray, keys: NDArray, values: NDArray, first: int, window: int, cap: float = 0) -> NDArray:
    """The softmax over the visible positions in float64; keys and values (positions, head_dim)."""
    out = np.empty(q.shape)
    for t in range(len(q)):
        low = max(0, first + t - window + 1) if window else 0
        seen = slice(low, first + t + 1)
        scores = q[t].astype(np.float64) @ keys[seen].T * q.shape[2] ** -0.5
        if cap:
            scores = cap * np.tanh(scores / cap)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[t] = weights / weights.sum(axis=1, keepdims=True) @ values[seen]
    return out


def random(*shape: int, seed: int, scale: float = 1) -> NDArray:
    return np.random.default_rng(seed).normal(0, scale, shape).astype(F32)


CASES = [  # first position, tokens, query heads, head_dim, window
    (0, 1, 1, 64, 0), (0, 17, 3, 64, 0), (250, 12, 4, 64, 0), (255, 2, 1, 20, 0), (256, 1, 2, 16, 0),
    (511, 5, 3, 80, 0), (700, 33, 1, 32, 0), (3, 9, 2, 64, 1), (100, 20, 3, 64, 7), (250, 20, 2, 64, 256),
    (600, 18, 2, 48, 300), (515, 3, 4, 64, 4), (1029, 1, 5, 96, 0), (777, 1, 8, 128, 0), (300, 2, 7, 16, 0),
    (270, 11, 6, 256, 0), (510, 70, 1, 16, 0), (250, 70, 2, 32, 40), (513, 1, 1, 256, 0),
]  # fmt: skip


@every_variant
@pytest.mark.parametrize("dim", [32, 20, 48, 128])
def test_q8_0_is_the_rule(variant, dim: int) -> None:
    """Codes and scales are those of GGML's blocks, taken apart: the ``gguf`` package reads them."""
    rows = random(PAGE, dim, seed=dim)
    rows *= (10.0 ** np.random.default_rng(1).integers(-6, 4, (PAGE, 1))).astype(F32)
    rows[3], rows[4], rows[5, 7], rows[6, 1], rows[7] = 0, 1e-39, np.nan, -np.inf, -0.0
    rows[8, :16], rows[9, 0] = np.arange(16) - 7.5, 127  # ties
    run = empty(variant.kv_bytes(1, dim), np.uint8)
    for slot, row in enumerate(rows):
        variant.kv_store(1, row, run, slot)
    stride, blocks = -(-dim // 16) * 16, -(-dim // 32)
    assert len(run) == PAGE * (2 * blocks + stride)
    scales, codes = (
        run[: 2 * blocks * PAGE].reshape(PAGE, blocks, 2),
        run[2 * blocks * PAGE :].reshape(PAGE, -1),
    )
    whole = np.zeros((PAGE, blocks * 32), np.uint8)
    whole[:, :stride] = codes
    file = np.concatenate([scales, whole.reshape(PAGE, blocks, 32)], axis=2).reshape(PAGE, -1)
    found = gguf.quants.dequantize(file, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(found[:, :dim], stored("q8_0", rows).astype(F32))
    assert not found[:, dim:][np.isfinite(found[:, dim:])].any(), "padding"
    other = empty(run.shape, np.uint8)
    for slot, row in enumerate(rows):
        SCALAR.kv_store(1, row, other, slot)
    assert np.array_equal(run, other), "against the scalar variant"


@every_variant
@every_format
@pytest.mark.parametrize("case", CASES, ids=[f"at{c[0]}x{c[1]}-g{c[2]}-d{c[3]}-w{c[4]}" for c in CASES])
def test_attention_is_accurate_and_the_same_everywhere(
    variant, kv: str, case: tuple[int, int, int, int, int]
) -> None:
    first, tokens, group, dim, window = case
    keys, values = random(first + tokens, dim, seed=1), random(first + tokens, dim, seed=2)
    k, v = cache(kv, keys), cache(kv, values)
    q = random(tokens, group, dim, seed=3, scale=1.5)
    found = attend(variant, kv, q, k, v, first, window)
    assert np.abs(found - exact(q, stored(kv, keys), stored(kv, values), first, window)).max() <= 4e-6
    if variant is not SCALAR:
        assert_same_bits(found, attend(SCALAR, kv, q, k, v, first, window), "against the scalar variant")
    for span in (1, 2):
        parts = attend(variant, kv, q, k, v, first, window, span)
        assert_same_bits(parts, found, f"in parts of {span} chunks")
    for split in {1, tokens // 2, tokens - 1} - {0, tokens}:
        parts = [
            attend(variant, kv, q[:split], k, v, first, window),
            attend(variant, kv, q[split:], k, v, first + split, window),
        ]
        assert_same_bits(np.concatenate(parts), found, f"in two calls, {split} tokens first")
    for head in {0, group - 1}:
        alone = attend(variant, kv, q[:, head : head + 1], k, v, first, window)
        assert_same_bits(alone[:, 0], found[:, head], f"query head {head} alone")


def test_attention_is_the_rule_step_by_step() -> None:
    """Rule R8 in NumPy, one operation at a time: what all variants agree on is what the rule says."""
    from tests.kernels.support import fma

    def fold(lanes: NDArray) -> F32:
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        return lanes[0]

    def each_fma(a: NDArray, b: NDArray, c: NDArray) -> NDArray:
        return fma(np.broadcast_to(a, c.shape).astype(F32), np.broadcast_to(b, c.shape).astype(F32), c)

    first, dim = 600, 48
    keys, values, q = (
        random(first + 1, dim, seed=4),
        random(first + 1, dim, seed=5),
        random(1, 1, dim, seed=6),
    )
    found = attend(SCALAR, "f16", q, cache("f16", keys), cache("f16", values), first)
    keys, values = (rows.astype(np.float16).astype(F32) for rows in (keys, values))
    merged: tuple[F32, F32, NDArray] | None = None
    for chunk in range(0, first + 1, 256):
        rows = range(chunk, min(chunk + 256, first + 1))
        scores = np.zeros(256, F32) - F32(np.inf)
        for j in rows:
            lanes = np.zeros(16, F32)
            for i in range(0, dim, 16):
                lanes = fma(q[0, 0, i : i + 16], keys[j, i : i + 16], lanes)
            scores[j - chunk] = fold(lanes) * F32(dim**-0.5)
        top, p = scores.max(), np.zeros(256, F32)
        n = len(rows)
        SCALAR.unary("exp", scores[:n] - top, p[:n])
        lanes, acc = np.zeros(16, F32), np.zeros(dim, F32)
        for j in range(0, 256, 16):
            lanes = lanes + p[j : j + 16]
        for j in rows:
            acc = each_fma(p[j - chunk], values[j], acc)
        total = fold(lanes)
        if merged is None:
            merged = (top, total, acc)
            continue
        high, e = max(merged[0], top), np.zeros(2, F32)
        SCALAR.unary("exp", np.array([merged[0] - high, top - high], F32), e)
        total = each_fma(merged[1], e[0], np.array([total * e[1]], F32))[0]
        merged = (high, total, each_fma(merged[2], e[0], acc * e[1]))
    assert merged is not None
    assert_same_bits(found[0, 0], merged[2] / merged[1], "the rule")


@every_variant
@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[7], CASES[9]])
def test_scores_with_a_soft_cap(variant, case: tuple[int, ...]) -> None:
    first, tokens, group, dim, window = case
    keys, values = random(first + tokens, dim, seed=1), random(first + tokens, dim, seed=2)
    k, v, q = cache("f16", keys), cache("f16", values), random(tokens, group, dim, seed=3, scale=6)
    found = attend(variant, "f16", q, k, v, first, window, cap=2.5)
    reference = exact(q, stored("f16", keys), stored("f16", values), first, window, 2.5)
    assert np.abs(found - reference).max() <= 4e-6
    assert_same_bits(
        found, attend(SCALAR, "f16", q, k, v, first, window, cap=2.5), "against the scalar variant"
    )
    alone = [attend(variant, "f16", q[t : t + 1], k, v, first + t, window, cap=2.5) for t in range(tokens)]
    assert_same_bits(np.concatenate(alone), found, "token by token")


@every_variant
@every_format
@pytest.mark.parametrize("window", [0, 5, 40, 300])
@pytest.mark.parametrize("tokens", [1, 20])
def test_what_the_mask_hides_does_not_matter(variant, kv: str, window: int, tokens: int) -> None:
    """Positions after the token and before its window may hold anything."""
    first, dim, group = 530, 64, 3
    keys, values = random(first + 64, dim, seed=1), random(first + 64, dim, seed=2)
    q = random(tokens, group, dim, seed=3)
    clean = attend(variant, kv, q, cache(kv, keys), cache(kv, values), first, window)
    assert np.isfinite(clean).all()
    for poison in (np.nan, np.inf, -np.inf):
        for rows in (keys, values):
            rows[first + tokens :] = poison
            rows[: max(0, first - window + 1) if window else 0] = poison
        found = attend(variant, kv, q, cache(kv, keys), cache(kv, values), first, window)
        assert_same_bits(found, clean, f"window {window}, {poison} where no token looks")
    for rows in (keys, values):  # a token that comes later in the same task
        rows[first + tokens - 1] = np.inf
    found = attend(variant, kv, q, cache(kv, keys), cache(kv, values), first, window)
    assert_same_bits(found[:-1], clean[:-1], f"window {window}, infinity at the last token")
    assert not np.isfinite(found[-1]).all()


@every_variant
@every_format
def test_large_scores_do_not_overflow(variant, kv: str) -> None:
    """Scores in the thousands: the largest wins, nothing becomes NaN, other chunks add nothing."""
    first, dim = 600, 16
    keys, values = np.ones((first + 1, dim), F32), random(first + 1, dim, seed=0)
    keys[300] = 2
    q = np.full((1, 1, dim), 400, F32)
    found = attend(variant, kv, q, cache(kv, keys), cache(kv, values), first)
    assert_same_bits(found[0, 0], stored(kv, values)[300].astype(F32), "the value of the winner")


WAYS = [(variant, tiled) for variant in VARIANTS for tiled in (False, True) if variant.has_tiles or not tiled]


@pytest.mark.parametrize(
    ("variant", "tiled"), WAYS, ids=[f"{v.name}-{'tiled' if t else 'plain'}" for v, t in WAYS]
)
@every_format
@pytest.mark.parametrize("case", [(1, 1, 32), (40, 2, 64), (256, 1, 20), (300, 3, 64), (513, 1, 16)])
def test_a_token_that_sees_what_follows_has_the_bits_of_the_last_one(
    variant, tiled: bool, kv: str, case: tuple[int, int, int]
) -> None:
    """With ``seen`` a query at any place sees what a causal one at the last place does."""
    n, group, dim = case
    k, v = (cache(kv, random(n, dim, seed=seed)) for seed in (1, 2))
    q = random(n, group, dim, seed=3, scale=1.5)

    def run(q: NDArray, first: int, seen: int, span: int = 0) -> NDArray:
        out = empty(q.shape, F32)
        q = np.ascontiguousarray(q)
        variant.attention(FORMATS[kv], q, k, v, first, dim**-0.5, 0, out, span, tiled, 0.0, seen)
        return out

    found = run(q, 0, n)
    for t in {0, n // 2, n - 1}:
        assert_same_bits(found[t : t + 1], run(q[t : t + 1], n - 1, 0), f"token {t} of {n}")
    assert_same_bits(run(q, 0, n, 1), found, "in parts")
    assert n == 1 or not np.array_equal(found, run(q, 0, 0)), "causal attention gives the same"
