"""bf16 tiles beside the definition of the instruction: every sum in the processor's own order, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from rase._kernels import kernels
from rase.gguf.formats import format_named
from tests.kernels.support import F32, FORMAT_NAMES, assert_same_bits, dequantized, empty, pack, raw_blocks
from tests.kernels.test_attention import CASES, FORMATS, cache, every_format, exact, random, stored

MISSING = dict(kernels.variants()).get("amx", "x86-64")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"bf16 tiles need {MISSING}")
TILED = [name for name in FORMAT_NAMES if name != "F32"]  # float32 weights never meet bf16 (rule R3)


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 to bf16, nearest even, denormals to zero; returned as float32."""
    bits = x.astype(F32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.abs(x) < np.finfo(F32).tiny, F32(0), rounded.astype(np.uint32).view(F32))


def flushed(x: np.ndarray) -> np.ndarray:
    """float64 sums to float32 as the tile unit rounds them: denormals become zero."""
    rounded = x.astype(F32)
    return np.where(np.abs(rounded) < np.finfo(F32).tiny, F32(0), rounded)


def expected(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """TDPBF16PS by Intel's definition, steps of 32 depths ascending.

    Within a step the even and the odd depths each have one float32 accumulator with one rounding per product,
    then their sum is added to the result. A product of two bf16 has 16 bits, so that float64 adds it to a
    float32 without a rounding that could matter but for operands 2^36 apart.
    """
    a, w = bf16(x).astype(np.float64), bf16(weights).astype(np.float64)
    cols = -(-a.shape[1] // 32) * 32
    a, w = (np.pad(side, ((0, 0), (0, cols - side.shape[1]))) for side in (a, w))
    total = np.zeros((len(a), len(w)), F32)
    for step in range(0, cols, 32):
        part = [np.zeros((len(a), len(w)), F32), np.zeros((len(a), len(w)), F32)]
        for k in range(step, step + 32):
            part[k % 2] = flushed(part[k % 2].astype(np.float64) + np.outer(a[:, k], w[:, k]))
        both = flushed(part[0].astype(np.float64) + part[1].astype(np.float64))
        total = flushed(total.astype(np.float64) + both.astype(np.float64))
    return total


def tiles(
    packed: np.ndarray, fmt: str, rows: int, x: np.ndarray, steps: int = 32, block: int = 8
) -> np.ndarray:
    out = empty((len(x), -(-rows // 16) * 16), F32)
    kernels.Variant("amx").tiles_linear(format_named(fmt).ggml_id, packed, rows, x, out, steps, block)
    return out[:, :rows]


def model(fmt: str, rows: int, cols: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packed weights, what they mean, and activations with outliers and zeros."""
    rng = np.random.default_rng(seed)
    raw = raw_blocks(fmt, rows, cols, rng)
    x = rng.normal(0, 1, (m, cols)).astype(F32)
    x[:, :: max(1, cols // 5)] *= F32(30)
    x[m // 2] = 0
    return pack(kernels.Variant("amx"), format_named(fmt), raw, rows, cols), dequantized(fmt, raw), x


@pytest.mark.parametrize("fmt", TILED)
def test_tiles_follow_the_definition_of_the_instruction(fmt: str) -> None:
    block = format_named(fmt).block_size
    cols = 3 * block if block > 1 else 67
    packed, weights, x = model(fmt, 41, cols, 35)
    right = expected(x, weights)
    for steps, side in ((32, "left"), (8, "the side that the format prefers")):
        assert_same_bits(tiles(packed, fmt, 41, x, steps), right, f"{fmt}, few rows, {side}")
    many = tiles(packed, fmt, 41, np.concatenate([x, x]))
    assert_same_bits(many, np.concatenate([right, right]), f"{fmt}, many rows")


@pytest.mark.parametrize("fmt", ["Q4_K", "Q6_K", "Q8_0", "BF16"])
def test_no_block_of_rows_groups_or_depth_changes_a_bit(fmt: str) -> None:
    """Cut anywhere, an output keeps its bits: prompts come in chunks, threads share matrices."""
    packed, _, x = model(fmt, 83, 1280, 97)
    whole = tiles(packed, fmt, 83, x)
    for steps, block in ((8, 1), (8, 2), (16, 3), (32, 8), (40, 5), (48, 6)):
        assert_same_bits(tiles(packed, fmt, 83, x, steps, block), whole, f"{steps} steps, {block} groups")
    for first, last in ((0, 1), (0, 15), (3, 20), (16, 48), (33, 97), (31, 97), (96, 97)):
        for steps in (32, 8):
            found = tiles(packed, fmt, 83, x[first:last].copy(), steps)
            assert_same_bits(found, whole[first:last], f"{first}-{last}, {steps} steps")


def test_rows_beyond_the_matrix_and_the_batch_are_not_written() -> None:
    packed, _, x = model("Q4_K", 16, 256, 17)
    out = np.full((18, 48), 99, F32)
    kernels.Variant("amx").tiles_linear(format_named("Q4_K").ggml_id, packed, 16, x, out[:17], 8, 8)
    assert (out[17] == 99).all() and (out[:, 16:] == 99).all()


def test_nan_and_infinity_reach_their_own_row_only() -> None:
    packed, _, x = model("Q8_0", 16, 64, 3)
    clean = tiles(packed, "Q8_0", 16, x)
    x[1, 5], x[1, 6] = np.nan, np.inf
    found = tiles(packed, "Q8_0", 16, x)
    assert np.isnan(found[1]).all()
    assert_same_bits(found[[0, 2]], clean[[0, 2]], "the rows beside it")


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int, window: int, span: int = 0, kv: str = "f16"
) -> np.ndarray:
    out = empty(q.shape, F32)
    scale = q.shape[2] ** -0.5
    kernels.Variant("amx").attention(
        FORMATS[kv], np.ascontiguousarray(q), k, v, first, scale, window, out, span, True
    )
    return out


@every_format
@pytest.mark.parametrize("case", CASES, ids=[f"at{c[0]}x{c[1]}-g{c[2]}-d{c[3]}-w{c[4]}" for c in CASES])
def test_attention_in_tiles_is_accurate_whatever_it_is_cut_into(
    kv: str, case: tuple[int, int, int, int, int]
) -> None:
    """Near float64, and every row has its own bits: alone, in parts of chunks, beside other tokens and heads.

    Positions of a page that were never stored hold NaN.
    """
    first, tokens, group, dim, window = case
    keys, values = random(first + tokens, dim, seed=1), random(first + tokens, dim, seed=2)
    k, v = cache(kv, keys), cache(kv, values)
    q = random(tokens, group, dim, seed=3, scale=1.5)
    found = attend(q, k, v, first, window, kv=kv)
    reference = exact(q, stored(kv, keys), stored(kv, values), first, window)
    error = float(((found - reference) ** 2).sum() / (reference**2).sum())
    assert error <= 2e-4, f"NMSE {error:.2g}"
    for span in (1, 2):
        assert_same_bits(attend(q, k, v, first, window, span, kv), found, f"in parts of {span} chunks")
    for split in {1, tokens // 2, tokens - 1} - {0, tokens}:
        parts = [
            attend(q[:split], k, v, first, window, kv=kv),
            attend(q[split:], k, v, first + split, window, kv=kv),
        ]
        assert_same_bits(np.concatenate(parts), found, f"in two calls, {split} tokens first")
    for head in {0, group - 1}:
        alone = attend(q[:, head : head + 1], k, v, first, window, kv=kv)
        assert_same_bits(alone[:, 0], found[:, head], f"query head {head} alone")


@every_format
def test_an_infinite_value_reaches_those_who_see_it_only(kv: str) -> None:
    """And its own elements: in q8_0 those of its block, which becomes NaN."""
    first, tokens, dim = 250, 12, 64
    keys, values = random(first + tokens, dim, seed=1), random(first + tokens, dim, seed=2)
    q = random(tokens, 2, dim, seed=3)
    clean = attend(q, cache(kv, keys), cache(kv, values), first, 0, kv=kv)
    values[first + 5, 3] = np.inf
    found = attend(q, cache(kv, keys), cache(kv, values), first, 0, kv=kv)
    assert_same_bits(found[:5], clean[:5], "tokens before the infinite value")
    lost = [3] if kv == "f16" else list(range(32))
    assert np.isinf(found[5:, :, 3]).all() if kv == "f16" else np.isnan(found[5:, :, lost]).all()
    assert_same_bits(
        np.delete(found[5:], lost, axis=2), np.delete(clean[5:], lost, axis=2), "the other elements"
    )
