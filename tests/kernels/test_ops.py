"""Norms, exp, SiLU, rotation, quantization, float16 and the float32 GEMM: the same bits in every variant,
and close to float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from rase.gguf.formats import format_named
from tests.kernels.support import (
    F32,
    NAMES,
    VARIANTS,
    assert_same_bits,
    empty,
    fma,
    pack,
    quantize,
    quantized,
)

SCALAR = VARIANTS[NAMES.index("scalar")]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
LENGTHS = [1, 15, 16, 17, 33, 576]


def ulps(found: NDArray, exact: NDArray) -> NDArray:
    """Distance in units of the last place of the exact value (float64)."""
    return np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(F32)).astype(np.float64)


def stored(variant, row: NDArray) -> NDArray:
    """The float16 bits of ``row`` as a page stores it in slot 0, padded to a multiple of 16."""
    run = empty(variant.kv_bytes(0, len(row)), np.uint8)
    variant.kv_store(0, row, run, 0)
    return run.view(np.uint16)[: -(-len(row) // 16) * 16]


def bits_of(halves: NDArray) -> NDArray:
    return halves.view(np.uint16)


@every_variant
def test_all_float16_values_are_read_exactly(variant) -> None:
    """Through packed F16 weights; NaN stays NaN with the bits that every variant gives."""
    halves = np.arange(65536, dtype=np.uint16)
    form = format_named("F16")
    out, other = empty((1, 65536), F32), empty((1, 65536), F32)
    variant.rows(1, pack(variant, form, halves, 1, 65536), 65536, np.array([0]), out)
    SCALAR.rows(1, pack(SCALAR, form, halves, 1, 65536), 65536, np.array([0]), other)
    assert np.array_equal(out.view(np.uint32), other.view(np.uint32))
    expected = halves.view(np.float16).astype(F32)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(out[0]), ~number)
    assert_same_bits(out[0, number], expected[number], "float16 to float32")


@every_variant
def test_float16_is_stored_with_the_nearest_even_value(variant) -> None:
    """Every float16 value, every midpoint and its neighbours, random bits, special values."""
    values = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(F32)
    middle = ((values[:-1].astype(np.float64) + values[1:].astype(np.float64)) / 2).astype(F32)
    middle = np.append(middle[:-1], F32(65520))  # halfway to the value that infinity stands for
    random = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(F32)
    some = np.concatenate(
        [values, middle, np.nextafter(middle, F32(0)), np.nextafter(middle, F32(1e6)), random]
    )
    some = np.concatenate([some, -some])
    some = some[: len(some) // 16 * 16]
    out = stored(variant, some)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = bits_of(some.astype(np.float16))
    number = ~np.isnan(some)
    assert np.array_equal(out[number], expected[number])
    assert np.isnan(out[~number].view(np.float16)).all() and (~number).any()
    assert np.array_equal(out, stored(SCALAR, some))


@every_variant
@pytest.mark.parametrize("n", [1, 15, 16, 17, 31])
def test_float16_rows_are_padded_with_zeros(variant, n: int) -> None:
    out = stored(variant, np.full(n, 1.5, F32))
    assert (out[:n] == 0x3E00).all() and not out[n:].any()


@every_variant
def test_exp_is_accurate_everywhere(variant) -> None:
    """At most 2 ulp for normal results; none is subnormal; exact ends; NaN stays NaN."""
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.uniform(-104, 88.7, 100_000), rng.normal(0, 1e-3, 1000), np.arange(-100, 88)]
    ).astype(F32)
    out = empty(len(x), F32)
    variant.unary("exp", x, out)
    exact = np.exp(x.astype(np.float64))
    normal = x >= F32(-87.3365)
    assert (exact[normal] >= 2.0**-126).all() and (exact[~normal] < 1.0001 * 2.0**-126).all()
    assert ulps(out[normal], exact[normal]).max() <= 2
    assert not out[~normal].any() and not np.signbit(out).any()
    ends = np.array([0, -0.0, 89, 1e38, np.inf, -88, -1e38, -np.inf, np.nan], F32)
    out = empty(len(ends), F32)
    variant.unary("exp", ends, out)
    assert np.array_equal(out, np.array([1, 1, np.inf, np.inf, np.inf, 0, 0, 0, np.nan], F32), equal_nan=True)


@every_variant
def test_silu_is_accurate_and_its_product_has_the_same_bits(variant) -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(0, 4, 50_000), rng.uniform(-86, 86, 5000), [0.0, -0.0]]).astype(F32)
    y = rng.normal(0, 1, len(x)).astype(F32)
    silu, product, both = (empty(len(x), F32) for _ in range(3))
    variant.unary("silu", x, silu)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    assert ulps(silu, exact)[np.abs(exact) > 2.0**-126].max() <= 4
    variant.binary("mul", silu, y, product)
    variant.binary("silu_mul", x, y, both)
    assert_same_bits(both, product, "silu_mul")


WIDE = np.concatenate([
    np.random.default_rng(4).normal(0, 3, 50_000), np.linspace(-30, 30, 5001), np.linspace(-1, 1, 5001),
    [0.0, -0.0, 1e-20, -1e-20, 0.625, -0.625],
]).astype(F32)  # fmt: skip


@every_variant
def test_tanh_is_accurate(variant) -> None:
    out = empty(len(WIDE), F32)
    variant.unary("tanh", WIDE, out)
    assert np.abs(out - np.tanh(WIDE.astype(np.float64))).max() <= 2.0**-22
    near = np.abs(WIDE) < 0.6
    exact = np.tanh(WIDE[near].astype(np.float64))
    assert ulps(out[near], exact).max() <= 2
    ends = np.array([np.inf, -np.inf, 1e38, -1e38, np.nan], F32)
    out = empty(len(ends), F32)
    variant.unary("tanh", ends, out)
    assert np.array_equal(out, np.array([1, -1, 1, -1, np.nan], F32), equal_nan=True)


@every_variant
@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
def test_gelu_is_accurate_in_both_forms(variant, kind) -> None:
    """The forms differ by up to 5e-4; each is near its own formula, also in the tail, where both vanish."""
    x = WIDE.astype(np.float64)
    if kind == "gelu":
        exact = np.array([0.5 * each * math.erfc(-each / math.sqrt(2)) for each in x])
    else:
        exact = x / (1 + np.exp(np.minimum(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), 700)))
    out = empty(len(WIDE), F32)
    variant.unary(kind, WIDE, out)
    assert (np.abs(out - exact) <= 1e-6 * np.minimum(np.abs(x), np.abs(exact) + 1e-3) + 1e-38).all()
    out = empty(1, F32)
    variant.unary(kind, np.array([np.nan], F32), out)
    assert np.isnan(out[0])


@every_variant
def test_a_soft_cap_bends_and_bounds(variant) -> None:
    out = empty(len(WIDE), F32)
    variant.soft_cap(WIDE, 5.0, out)
    assert np.abs(out - 5 * np.tanh(WIDE.astype(np.float64) / 5)).max() <= 5 * 2.0**-22
    assert np.abs(out).max() <= 5


@every_variant
@pytest.mark.parametrize("n", LENGTHS)
def test_elementwise_operations_have_the_same_bits_in_every_variant(variant, n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(0, 3, n).astype(F32), rng.normal(0, 3, n).astype(F32)
    out, other = empty(n, F32), empty(n, F32)
    for name, expected in (("add", a + b), ("mul", a * b), ("silu_mul", None)):
        variant.binary(name, a, b, out)
        SCALAR.binary(name, a, b, other)
        assert_same_bits(out, other if expected is None else expected, name)
    for name in ("exp", "silu", "gelu", "gelu_tanh", "tanh"):
        variant.unary(name, a, out)
        SCALAR.unary(name, a, other)
        assert_same_bits(out, other, name)
    variant.soft_cap(a, 2.0, out)
    SCALAR.soft_cap(a, 2.0, other)
    assert_same_bits(out, other, "soft_cap")


def rms_norm_by_the_rule(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    """16 lanes over each group, ascending, folded 8-4-2-1 (rule R1), in float32."""
    rows = x.reshape(-1, len(weight))
    padded = np.zeros((len(rows), -(-len(weight) // 16) * 16), F32)
    padded[:, : len(weight)] = rows
    lanes = np.zeros((len(rows), 16), F32)
    for i in range(0, padded.shape[1], 16):
        lanes = fma(padded[:, i : i + 16], padded[:, i : i + 16], lanes)
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
    inverse = F32(1) / np.sqrt(lanes / F32(len(weight)) + F32(eps))
    return (rows * inverse * weight).reshape(-1)


@every_variant
@pytest.mark.parametrize("group", [*LENGTHS, 64])
def test_rms_norm_follows_the_order_of_the_rule(variant, group: int) -> None:
    rng = np.random.default_rng(group)
    x, weight = (rng.normal(0, 2, 3 * group)).astype(F32), rng.normal(1, 0.3, group).astype(F32)
    out = empty(3 * group, F32)
    variant.rms_norm(x, weight, 1e-5, out)
    assert_same_bits(out, rms_norm_by_the_rule(x, weight, 1e-5), f"group of {group}")
    rows = x.astype(np.float64).reshape(3, -1)
    exact = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + 1e-5) * weight
    assert np.abs(out.reshape(3, -1) - exact).max() <= 1e-6 * np.abs(exact).max()


def layer_norm_by_the_rule(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    """Sums in 16 lanes, ascending, folded 8-4-2-1 (rule R1); squares of the rounded differences."""
    n = len(x)

    def mean_of(add, values: NDArray) -> NDArray:
        padded, lanes = np.zeros(-(-n // 16) * 16, F32), np.zeros(16, F32)
        padded[:n] = values
        for i in range(0, len(padded), 16):
            lanes = add(padded[i : i + 16], lanes)
        for half in (8, 4, 2, 1):
            lanes = lanes[:half] + lanes[half : 2 * half]
        return lanes[0] / F32(n)

    centred = x - mean_of(lambda v, lanes: lanes + v, x)
    variance = mean_of(lambda v, lanes: fma(v, v, lanes), centred)
    return centred * (F32(1) / np.sqrt(variance + F32(eps))) * weight


@every_variant
@pytest.mark.parametrize("n", [*LENGTHS, 64, 384])
def test_layer_norm_follows_the_order_of_the_rule(variant, n: int) -> None:
    rng = np.random.default_rng(n)
    x, weight = rng.normal(3, 2, n).astype(F32), rng.normal(1, 0.3, n).astype(F32)
    out = empty(n, F32)
    variant.layer_norm(x, weight, 1e-5, out)
    assert_same_bits(out, layer_norm_by_the_rule(x, weight, 1e-5), f"{n} elements")
    wide = x.astype(np.float64)
    exact = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5) * weight
    assert np.abs(out - exact).max() <= 2e-6 * max(1, np.abs(exact).max())


@every_variant
@pytest.mark.parametrize("neighbour", [True, False], ids=["neighbour", "half"])
@pytest.mark.parametrize("n_dims", [2, 20, 64])
def test_rotation(variant, neighbour: bool, n_dims: int) -> None:
    """(a cos - b sin, b cos + a sin), one product rounded, the other in the FMA; dims from n_dims on stay."""
    rng = np.random.default_rng(n_dims)
    heads = rng.normal(0, 1, (3, 64)).astype(F32)
    angle = rng.uniform(-3, 3, n_dims // 2)
    cos, sin = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    found = heads.copy()
    variant.rotate(found, cos, sin, neighbour)
    expected = heads.copy()
    half = n_dims // 2
    first = slice(0, n_dims, 2) if neighbour else slice(0, half)
    second = slice(1, n_dims, 2) if neighbour else slice(half, n_dims)
    a, b = heads[:, first], heads[:, second]
    c, s = np.broadcast_to(cos, a.shape), np.broadcast_to(sin, a.shape)
    expected[:, first], expected[:, second] = fma(a, c, -(b * s)), fma(b, c, a * s)
    assert_same_bits(found, expected, "rotate")


@every_variant
@pytest.mark.parametrize("kind", ["q16_32", "q16_256"])
def test_quantization_follows_the_rule(variant, kind: str) -> None:
    """Both halves, scales and sums of the rule in NumPy; outliers, ties, zeros, both ends of float32."""
    block = 32 if kind == "q16_32" else 256
    rng = np.random.default_rng(3)
    n = 40 * block
    x = rng.normal(0, 1, (40, block)) * 10.0 ** rng.integers(-30, 30, (40, 1))
    x[:, 3] *= 50
    x[5] = 0
    x[6] *= 1e-38 / np.abs(x[6]).max()
    x[7] *= 3e38 / np.abs(x[7]).max()
    x[8] = np.round(x[8] / np.abs(x[8]).max() * 200) + 0.5
    x[9] = 32384  # every value at the end of the range
    x[9, ::2] = -32384
    x[10] = 0
    x[10, 0] = -0.0
    x = x.reshape(-1).astype(F32)
    act = quantize(variant, x, block)
    top, bottom, scales = quantized(x.reshape(1, -1), block)
    assert np.array_equal(act.q.reshape(2, n), np.concatenate([top, bottom]))
    assert np.array_equal(act.wide, (254 * top + bottom)[0])
    assert_same_bits(act.d, scales[0], "scales")
    if block == 32:
        sums = act.q.reshape(2, -1, block).sum(axis=2, dtype=np.int32)
        assert np.array_equal(act.sums.reshape(2, -1), sums)
        assert_same_bits(act.dsums, act.d * (254 * sums[0] + sums[1]).astype(F32), "dsums")
    else:
        of = [act.wide.reshape(40, -1, width).sum(axis=2, dtype=np.int32) for width in (16, 32)]
        low, high = np.moveaxis(act.sides.reshape(40, 24, 2).astype(np.int32), 2, 0)
        assert np.array_equal(128 * high + low, np.concatenate(of, axis=1)) and low.min() >= 0
    d = act.d
    back = d.astype(np.float64)[:, None] * (254 * top + bottom).reshape(-1, block)
    tolerance = 0.51 * d.astype(np.float64)[:, None] + 1e-33
    assert (np.abs(back - x.astype(np.float64).reshape(-1, block)) <= tolerance).all()


@every_variant
@pytest.mark.parametrize("kind", ["q16_32", "q16_256"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantization_marks_what_is_not_finite(variant, kind: str, bad: float) -> None:
    block = 32 if kind == "q16_32" else 256
    for at in (0, 17, 2 * block - 1):
        x = np.ones(2 * block, F32)
        x[at] = bad
        act = quantize(variant, x, block)
        assert np.isnan(act.d[at // block])
        assert block == 256 or np.isnan(act.dsums[at // block])


@every_variant
@pytest.mark.parametrize("m", [1, 2, 3, 5, 12, 13, 24, 25, 41])
def test_gemm_is_one_fma_per_element_in_ascending_order(variant, m: int) -> None:
    rng = np.random.default_rng(m)
    depth, r = 37, variant.rows_per_group
    panel, a = rng.normal(0, 1, (depth, 16)).astype(F32), rng.normal(0, 1, (m, depth)).astype(F32)
    panel = np.ascontiguousarray(panel[:, :r])
    out = empty((m, r), F32)
    variant.gemm_f32(panel, a, out)
    expected = np.zeros((m, r), F32)
    for k in range(depth):
        expected = fma(np.broadcast_to(panel[k], (m, r)), np.broadcast_to(a[:, k : k + 1], (m, r)), expected)
    assert_same_bits(out, expected, f"{m} rows")
