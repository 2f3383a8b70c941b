"""Linear layers on packed weights: exactly rules R1 and R2, the same bits in every variant, batch, split."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from rase.gguf.formats import format_named
from rase.testing.blocks import get_half, set_half
from tests.kernels.support import (
    F32,
    FORMAT_NAMES,
    NAMES,
    SCALES,
    VARIANTS,
    assert_same_bits,
    dequantized,
    expected_linear,
    fma,
    linear,
    pack,
    raw_blocks,
)  # fmt: skip

M = 33
QUANTISED = [name for name in FORMAT_NAMES if format_named(name).block_size > 1]


def activations(m: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Normal values with outliers, a row of zeros, and rows of very small and very large values."""
    x = rng.normal(0, 1, (m, cols)).astype(F32)
    x[:, :: max(1, cols // 5)] *= F32(30)
    for row, factor in ((1, 0.0), (2, 1e-12), (3, 1e12)):
        if row < m:
            x[row] *= F32(factor)
    return x


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
def test_linear_follows_the_rules_exactly(variant, fmt: str, rows: int) -> None:
    form = format_named(fmt)
    cols = 3 * form.block_size if form.block_size > 1 else 67
    rng = np.random.default_rng(rows)
    raw, x = raw_blocks(fmt, rows, cols, rng), activations(M if rows == 33 else 5, cols, rng)
    found = linear(variant, form, pack(variant, form, raw, rows, cols), rows, x)
    assert_same_bits(found, expected_linear(fmt, raw, x), f"{fmt} {variant.name}, {rows} rows")


@pytest.mark.parametrize("fmt", [name for name in QUANTISED if name.startswith("IQ")])
def test_deep_rows_follow_the_rules(fmt: str) -> None:
    """So many depths that activations are prepared a part at a time: 65 blocks, for one row and for two."""
    variant, form, rows, cols = VARIANTS[-1], format_named(fmt), 17, 65 * 256
    rng = np.random.default_rng(12)
    raw, x = raw_blocks(fmt, rows, cols, rng), rng.normal(0, 1, (2, cols)).astype(F32)
    packed, expected = pack(variant, form, raw, rows, cols), expected_linear(fmt, raw, x)
    for m in (1, 2):
        assert_same_bits(linear(variant, form, packed, rows, x[:m]), expected[:m], f"{fmt}, {m} rows")


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_batch_and_split_change_no_bit(variant, fmt: str) -> None:
    """Any number of activation rows and any run of groups give what one call for everything gives."""
    form, rows, r = format_named(fmt), 83, variant.rows_per_group
    cols = 2 * form.block_size if form.block_size > 1 else 130
    rng = np.random.default_rng(11)
    raw, x = raw_blocks(fmt, rows, cols, rng), activations(M, cols, rng)
    packed = pack(variant, form, raw, rows, cols)
    everything = linear(variant, form, packed, rows, x)
    for m in (1, 2, 3, 5, 7, 8, 9, 17):
        for start in (0, M - m):
            part = linear(variant, form, packed, rows, x[start : start + m])
            assert_same_bits(part, everything[start : start + m], f"{m} activation rows from {start}")
    groups = -(-rows // r)
    for first, last in ((0, 1), (1, 2), (1, groups), (groups - 1, groups), (0, groups - 1)):
        for m in (1, M):
            part = linear(variant, form, packed, rows, x[:m], first, last)
            inside = slice(first * r, min(rows, last * r))
            assert_same_bits(part[:, inside], everything[:m, inside], f"groups {first}-{last}, {m} rows")
            outside = np.ones(rows, bool)
            outside[inside] = False
            assert (part[:, outside] == 99).all(), "a call wrote outputs of groups that it was not given"


@pytest.mark.parametrize("fmt", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("name", [v.name for v in VARIANTS if v.rows_per_group == 16])
def test_large_outputs_are_those_of_few_rows(name: str, fmt: str) -> None:
    """Chunks of rows and sets of groups, the last ones partial; so many outputs that they pass the caches."""
    variant = VARIANTS[NAMES.index(name)]
    form, m, rows, cols = format_named(fmt), 535, 16 * 257, 256
    rng = np.random.default_rng(13)
    raw, x = raw_blocks(fmt, rows, cols, rng), activations(m, cols, rng)
    packed = pack(variant, form, raw, rows, cols)
    found = linear(variant, form, packed, rows, x)
    assert found.nbytes > 8 << 20
    for start in (0, 240, 262, 264, 527, 534):
        few = linear(variant, form, packed, rows, x[start : start + 4])
        assert_same_bits(found[start : start + 4], few, f"{fmt} {variant.name}, rows from {start}")


@pytest.mark.parametrize("fmt", QUANTISED)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_extreme_codes_do_not_overflow(variant, fmt: str) -> None:
    """All codes, scales and activations at their largest magnitudes, of either sign."""
    form = format_named(fmt)
    rng = np.random.default_rng(2)
    for fill in (0x00, 0xFF, 0x7F, 0x80, None):
        raw = raw_blocks(fmt, 16, 2 * form.block_size, rng)
        blocks = raw.reshape(-1, form.block_bytes)
        halves = [at for at in SCALES[fmt] if at is not None]
        scales = [get_half(fmt, blocks, at) for at in halves]
        blocks[:] = rng.choice([0, 0xFF], blocks.shape) if fill is None else fill
        for at, scale in zip(halves, scales, strict=True):
            set_half(fmt, blocks, at, scale)
        x = np.where(rng.random((4, 2 * form.block_size)) < [[0], [1], [0.5], [0.9]], F32(1), F32(-1))
        found = linear(variant, form, pack(variant, form, raw, 16, x.shape[1]), 16, x)
        assert_same_bits(found, expected_linear(fmt, raw, x), f"{fmt} filled with {fill}")


@pytest.mark.parametrize("fmt", [fmt for fmt in QUANTISED if fmt != "W4A16"])  # tests/checkpoint/test_awq.py
def test_quantised_activations_are_accurate_enough(fmt: str) -> None:
    """Against float64 on the dequantised weights and the exact activations: NMSE at most 1e-4 (rule R9)."""
    from rase.testing.blocks import random_blocks

    variant, form, rows, cols = VARIANTS[-1], format_named(fmt), 64, 1024
    rng = np.random.default_rng(4)
    raw = np.frombuffer(random_blocks(fmt, (rows, cols), rng), np.uint8).reshape(rows, -1)
    x = rng.normal(0, 1, (16, cols)).astype(F32)
    found = linear(variant, form, pack(variant, form, raw, rows, cols), rows, x)
    exact = x.astype(np.float64) @ dequantized(fmt, raw).astype(np.float64).T
    assert np.square(found - exact).sum() / np.square(exact).sum() <= 1e-4


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_poisoned_activations_reach_the_output(variant) -> None:
    """NaN or infinity in one block of an activation row makes that row NaN and leaves the others alone."""
    for fmt in ("Q8_0", "Q4_1", "Q4_K", "Q6_K"):
        form = format_named(fmt)
        raw = raw_blocks(fmt, 16, 512, np.random.default_rng(0))
        x = np.random.default_rng(1).normal(0, 1, (9, 512)).astype(F32)
        x[2, 300], x[8, 5] = np.nan, -np.inf
        found = linear(variant, form, pack(variant, form, raw, 16, 512), 16, x)
        assert np.isnan(found[[2, 8]]).all() and np.isfinite(np.delete(found, [2, 8], axis=0)).all(), fmt


def halfway_cases() -> np.ndarray:
    """Rows a, b, c with a * b + c on a float32 tie, or beside it by less than the last bit of a double.

    There a sum that is rounded to double first lands on the tie and goes to the wrong side.
    """
    cases = [(2.0**-12, 2.0**-12, 1.0), (2.0**-12, 2.0**-12, 1 + 2.0**-23), (2.0**-12, -(2.0**-13), 1.0)]
    for k in range(15, 23):
        above, below = 1 + 2.0**-k, 1 - 2.0**-k  # the product is 1 - 2^-2k
        cases += [
            (above, below * 2.0**-24, 1 + 2.0**-23),
            (above, -below * 2.0**-25, 1 - 2.0**-24),
            (above * 2.0**80, -below * 2.0**20, -(1 + 2.0**-23) * 2.0**124),
            (above * 2.0**-70, below * 2.0**-80, 3 * 2.0**-149),  # subnormal results
            (above * 2.0**-75, -below * 2.0**-75, 2.0**-149),
        ]
    for low in range(1, 200, 7):
        cases += [(1 + low * 2.0**-23, 2.0**-24, 1.0), (1 - low * 2.0**-24, -(2.0**-25), 1.0)]
        cases += [((1 + low * 2.0**-23) * 2.0**64, 2.0**63, -(2.0**127))]
    return np.array(cases, dtype=np.float64).astype(F32)


def nearest_float32(value: Fraction) -> float:
    """``value`` rounded once, to nearest even, with subnormals."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = max(-149, magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 25)
    while magnitude >= Fraction(2) ** (exponent + 24):
        exponent += 1
    unit = Fraction(2) ** exponent
    result = round(magnitude / unit) * unit  # Fraction rounds ties to even
    return (
        float(result if value > 0 else -result)
        if result < Fraction(2) ** 128
        else float(np.inf) * (1 if value > 0 else -1)
    )


def test_the_reference_fma_is_exact() -> None:
    rng = np.random.default_rng(9)
    random = (rng.normal(0, 1, (700, 3)) * 2.0 ** rng.integers(-30, 30, (700, 3))).astype(F32)
    cases = np.concatenate([halfway_cases(), random])
    found = fma(cases[:, 0], cases[:, 1], cases[:, 2])
    expected = [
        nearest_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))) for a, b, c in cases
    ]
    assert_same_bits(found, np.array(expected, dtype=F32) + F32(0), "fma")


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_fma_rounds_once_on_halfway_cases(variant) -> None:
    """F32 weights of depth 2: the first product puts c into the accumulator, the second gives a * b + c.

    The baseline has no FMA instruction; a plain double sum would round some of these twice.
    """
    cases = halfway_cases()
    rng = np.random.default_rng(6)
    near = 1 + rng.integers(0, 2**23, (600, 1)) * 2.0**-23
    other = (1 + rng.integers(0, 2**23, (600, 1)) * 2.0**-23) * 2.0 ** rng.integers(-26, -22, (600, 1))
    start = rng.choice([-1, 1], (600, 1)) * (1 + rng.integers(0, 8, (600, 1)) * 2.0**-23)
    cases = np.concatenate([cases, np.hstack([near, other, start]).astype(F32)])
    weights = np.ascontiguousarray(np.stack([cases[:, 2], cases[:, 0]], axis=1))
    double_rounded = 0
    form = format_named("F32")
    for i in range(0, len(cases), 16):
        part = cases[i : i + 16]
        packed = pack(variant, form, weights[i : i + 16], len(part), 2)
        x = np.stack([np.ones(len(part), F32), part[:, 1]], axis=1)
        found = np.diagonal(linear(variant, form, packed, len(part), x)).copy()
        expected = [
            nearest_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))) for a, b, c in part
        ]
        assert_same_bits(found, np.array(expected, dtype=F32), f"cases from {i}")
        wide = part.astype(np.float64)
        twice = (wide[:, 0] * wide[:, 1] + wide[:, 2]).astype(F32)
        double_rounded += int((twice != np.array(expected, dtype=F32)).sum())
    assert double_rounded >= 16, "no case would catch a sum that rounds twice"
