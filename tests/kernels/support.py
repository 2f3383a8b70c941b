"""Helpers of the kernel tests: this machine's variants, packing, and rules R1 and R2 in slow, exact NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gguf
import numpy as np
from numpy.typing import NDArray

from rase._kernels import kernels
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import FORMATS, W4A16, Format, format_named
from rase.testing.blocks import get_half, set_half

VARIANTS = [kernels.Variant(name) for name, missing in kernels.variants() if missing is None]
NAMES = [variant.name for variant in VARIANTS]
FORMAT_NAMES = [form.name for form in (*FORMATS.values(), W4A16)]
F32 = np.float32

# Byte offsets of d and of dmin or m in a block.
SCALES: dict[str, tuple[int, int | None]] = {
    "Q4_0": (0, None), "Q4_1": (0, 2), "Q5_0": (0, None), "Q5_1": (0, 2), "Q8_0": (0, None),
    "Q2_K": (80, 82), "Q3_K": (108, None), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, None),
    "IQ4_NL": (0, None), "IQ4_XS": (0, None), "MXFP4": (0, None), "TQ1_0": (52, None), "TQ2_0": (64, None),
    "IQ3_XXS": (0, None), "IQ3_S": (0, None), "IQ2_XXS": (0, None), "IQ2_XS": (0, None), "IQ2_S": (0, None),
    "IQ1_S": (0, None), "IQ1_M": (48, None), "W4A16": (0, 2),
}  # fmt: skip

# Depths of a block of 256 that are summed as integers (rule R2); 32 where nothing is said.
RUN = {
    "Q2_K": 256, "Q3_K": 256, "Q4_K": 64, "Q6_K": 16, "IQ4_XS": 16, "IQ3_S": 128, "IQ1_S": 256, "IQ1_M": 256,
    "TQ1_0": 256, "TQ2_0": 256,
}  # fmt: skip

# Formats whose integer weights count in a fraction of d.
UNIT: dict[str, float] = {
    "IQ3_XXS": 1 / 4, "IQ2_XXS": 1 / 8, "IQ2_XS": 1 / 8, "IQ2_S": 1 / 8, "IQ1_S": 1 / 8, "IQ1_M": 1 / 8
}  # fmt: skip


def empty(shape: int | tuple[int, ...], dtype: type) -> NDArray:
    """An array whose data lie on a 64-byte boundary, filled with a pattern that a missed write would show."""
    count = int(np.prod(shape))
    raw = np.full(count * np.dtype(dtype).itemsize + 64, 0xA5, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def pack(variant: kernels.Variant, form: Format, raw: NDArray, rows: int, cols: int) -> NDArray:
    packed = empty(variant.packed_bytes(form.ggml_id, rows, cols), np.uint8)
    variant.pack(form.ggml_id, np.ascontiguousarray(raw).reshape(-1).view(np.uint8), rows, cols, packed)
    return packed


def linear(
    variant: kernels.Variant,
    form: Format,
    packed: NDArray,
    rows: int,
    x: NDArray,
    first: int = 0,
    last: int = -1,
) -> NDArray:
    """The first ``rows`` columns of ``linear``; groups outside [first, last) keep the value 99."""
    r = variant.rows_per_group
    out = empty((len(x), -(-rows // r) * r), F32)
    out[:] = 99
    variant.linear(form.ggml_id, packed, rows, x, out, first, last)
    return out[:, :rows]


def raw_blocks(fmt: str, rows: int, cols: int, rng: np.random.Generator) -> NDArray:
    """Random file bytes (rows, row_bytes): every bit of codes and in-block scales.

    The float16 scales are normal, negative, zero, subnormal and large, and always finite.
    """
    form = format_named(fmt)
    if form.block_size == 1:
        values = rng.normal(0, 1, (rows, cols)) * 2.0 ** rng.integers(-12, 4, (rows, cols))
        return (
            gguf.quants.quantize(values.astype(F32), gguf.GGMLQuantizationType[fmt])
            .view(np.uint8)
            .reshape(rows, -1)
        )
    blocks = rng.integers(0, 256, (rows * cols // form.block_size, form.block_bytes), dtype=np.uint8)
    for at in SCALES[fmt]:
        if at is not None:
            half = rng.normal(0, 0.02, len(blocks)).astype(np.float16)
            special = np.array([0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0xC500, 0x5640], dtype=np.uint16).view(
                np.float16
            )
            chosen = rng.random(len(blocks)) < 0.25
            half[chosen] = rng.choice(special, int(chosen.sum()))
            set_half(fmt, blocks, at, half)
    return blocks.reshape(rows, -1)


def dequantized(fmt: str, raw: NDArray) -> NDArray:
    if fmt == "W4A16":  # no format of the package: tests/checkpoint/test_awq.py has its definition
        return dequantize(
            W4A16, raw.tobytes(), (len(raw), raw.shape[1] // W4A16.block_bytes * W4A16.block_size)
        )
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[fmt])


def integer_parts(fmt: str, raw: NDArray, cols: int) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """(codes, minimums, d, m) of file rows: the exact integers of each block, and its float scales.

    Integer weights scale * (code - offset) and integer minimums, both (rows, cols); d, and m or dmin,
    (rows, blocks) float32. The package unpacks: with d = 1 a weight is its integer.
    """
    form = format_named(fmt)
    d_at, m_at = SCALES[fmt]
    blocks = raw.reshape(-1, form.block_bytes)
    unit = F32(UNIT.get(fmt, 1.0))

    def with_scales(d: float, m: float) -> NDArray:
        changed = blocks.copy()
        set_half(fmt, changed, d_at, np.full(len(blocks), d))
        if m_at is not None:
            set_half(fmt, changed, m_at, np.full(len(blocks), m))
        return dequantized(fmt, changed.reshape(raw.shape)).reshape(len(raw), cols)

    def half(at: int) -> NDArray:
        return get_half(fmt, blocks, at).reshape(len(raw), -1)

    codes = with_scales(1, 0) / unit
    assert np.array_equal(codes, np.rint(codes)), "integers times the unit of d"
    minimums = np.zeros_like(codes) if m_at is None else np.abs(with_scales(0, 1))
    return (
        codes.astype(np.int64),
        minimums.astype(np.int64),
        half(d_at) * unit,
        half(m_at if m_at is not None else d_at),
    )


def fma(a: NDArray, b: NDArray, c: NDArray) -> NDArray:
    """a * b + c of float32 arrays, rounded once: exact product, TwoSum, rounding to odd (tested)."""
    with np.errstate(all="ignore"):
        p, c64 = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        s = p + c64
        t = s - p
        error = (p - (s - t)) + (c64 - t)
        even = (s.view(np.int64) & 1) == 0
        toward = np.where(error > 0, np.inf, -np.inf)
        odd = np.where((error != 0) & np.isfinite(s) & even, np.nextafter(s, toward), s)
        return odd.astype(F32)


def quantized(x: NDArray, block: int) -> tuple[NDArray, NDArray, NDArray]:
    """High and low int8 halves (m, cols) and scales (m, blocks) of activations: d = amax / 32384,
    v = round(x * (32384 / amax)), high = round(v / 254), low = v - 254 * high."""
    parts = x.reshape(len(x), -1, block)
    amax = np.abs(parts).max(axis=2)
    with np.errstate(all="ignore"):
        v = np.where(amax[:, :, None] < F32(1e-33), F32(0), np.rint(parts * (F32(32384) / amax)[:, :, None]))
    high = np.rint(v * F32(1 / 254)).astype(np.int64).reshape(x.shape)
    low = v.astype(np.int64).reshape(x.shape) - 254 * high
    assert max(np.abs(high).max(), np.abs(low).max()) <= 127
    return high, low, np.where(amax < F32(1e-33), F32(0), amax / F32(32384)).astype(F32)


@dataclass(frozen=True)
class Quantized:
    """One row as kernels.h lays it out; ``sums`` and ``dsums`` of blocks of 32, ``sides`` of 256."""

    q: NDArray
    wide: NDArray
    d: NDArray
    sums: NDArray
    dsums: NDArray
    sides: NDArray


def quantize(variant: kernels.Variant, x: NDArray, block: int) -> Quantized:
    """A row quantized by the variant."""
    n, blocks = len(x), len(x) // block
    act = Quantized(
        empty(2 * n, np.int8), empty(4 * n, np.int16), empty(blocks, F32),
        empty(2 * blocks if block == 32 else 0, np.int32), empty(blocks if block == 32 else 0, F32),
        empty(0 if block == 32 else 48 * blocks, np.int16),
    )  # fmt: skip
    if block == 32:
        variant.quantize_32(x, act.q, act.wide, act.d, act.sums, act.dsums)
    else:
        variant.quantize_256(x, act.q, act.wide, act.d, act.sides)
    wide = act.wide.reshape(-1, 4, 32)[:, 0].reshape(-1, 4)[:, [0, 2, 1, 3]]
    return replace(act, wide=np.ascontiguousarray(wide).reshape(-1))


def expected_linear(fmt: str, raw: NDArray, x: NDArray) -> NDArray:
    """(m, rows) by rules R1 (float formats) and R2, one step at a time."""
    rows, (m, cols) = len(raw), x.shape
    acc = np.zeros((m, rows), dtype=F32)
    form = format_named(fmt)
    if form.block_size == 1:
        w = dequantized(fmt, raw)
        for k in range(cols):
            acc = fma(np.broadcast_to(w[:, k], acc.shape), np.broadcast_to(x[:, k, None], acc.shape), acc)
        return acc
    codes, minimums, d, low = integer_parts(fmt, raw, cols)
    together = 256 if form.block_size == 256 else 32  # activations with one scale
    if fmt == "W4A16":  # a zero point is a minimum
        low = -(d * low)
    high, low_half, da = quantized(x, together)
    q = 254 * high + low_half
    for b in range(cols // form.block_size):
        part = slice(b * form.block_size, (b + 1) * form.block_size)
        run = RUN.get(fmt, 32)
        for k in range(part.start, part.stop, run):  # as many depths as int32 holds the sum of
            isum = q[:, k : k + run] @ codes[:, k : k + run].T
            assert np.abs(isum).max() < 2**31
            scale = da[:, k // together]
            acc = fma(isum.astype(F32), d[None, :, b] * scale[:, None], acc)
            if (
                together == 32 and SCALES[fmt][1] is not None
            ):  # + m * (da * activation sum), the latter rounded
                dsums = (scale * q[:, k : k + run].sum(axis=1).astype(F32))[:, None]
                acc = fma(np.broadcast_to(low[None, :, b], acc.shape), np.broadcast_to(dsums, acc.shape), acc)
        if together == 256 and SCALES[fmt][1] is not None:  # - (dmin * da) * integer sum
            isum = q[:, part] @ minimums[:, part].T
            acc = fma(-(low[None, :, b] * da[:, b, None]), isum.astype(F32), acc)
    return acc


def assert_same_bits(found: NDArray, expected: NDArray, what: str) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype == F32, what
    a, b = np.ascontiguousarray(found).view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    different = np.argwhere(a != b)
    if len(different):
        at = tuple(different[0])
        raise AssertionError(
            f"{what}: {len(different)} of {a.size} differ, first at {at}: "
            f"{found[at]!r}, expected {expected[at]!r}"
        )
