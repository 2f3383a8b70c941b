"""Packing and unpacking: rows and panels of every format and variant are bit-equal to the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from rase.gguf.formats import FORMATS, W4A16, format_named
from rase.gguf.reader import GgufFile
from tests.kernels.support import (
    F32,
    FORMAT_NAMES,
    NAMES,
    VARIANTS,
    assert_same_bits,
    dequantized,
    empty,
    pack,
    raw_blocks,
)

# A block multiple that is no multiple of larger tiles; rows that leave every kind of last group.
COLS = {"F32": 37, "F16": 35, "BF16": 1}
ROWS = [1, 7, 8, 15, 16, 17, 33]


def cols_of(fmt: str) -> int:
    return COLS.get(fmt, 3 * format_named(fmt).block_size)


def test_every_variant_has_every_format() -> None:
    assert "scalar" in NAMES
    for variant in VARIANTS:
        assert [f for f in range(64) if variant.supports(f)] == [*sorted(FORMATS), W4A16.ggml_id], (
            variant.name
        )
        with pytest.raises(ValueError, match="no kernel for format 9"):
            variant.packed_bytes(9, 16, 256)


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_rows_are_bit_equal_to_the_package(variant, fmt: str) -> None:
    form, cols = format_named(fmt), cols_of(fmt)
    for rows in ROWS:
        raw = raw_blocks(fmt, rows, cols, np.random.default_rng(rows))
        packed = pack(variant, form, raw, rows, cols)
        which = np.random.default_rng(1).permutation(rows).astype(np.int64)
        out = empty((rows, cols), F32)
        variant.rows(form.ggml_id, packed, cols, which, out)
        assert_same_bits(out, dequantized(fmt, raw)[which], f"{fmt}, {rows} rows")


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_panels_are_bit_equal_to_the_package(variant, fmt: str) -> None:
    """Whole panels and every part of blocks; rows that pad the last group are zero."""
    form, cols, rows, r = format_named(fmt), cols_of(fmt), 21, variant.rows_per_group
    raw = raw_blocks(fmt, rows, cols, np.random.default_rng(5))
    packed = pack(variant, form, raw, rows, cols)
    expected = np.zeros((-(-rows // r) * r, cols), dtype=F32)
    expected[:rows] = dequantized(fmt, raw)
    step = max(1, cols // 3)
    ranges = {(0, cols), (0, step), (step, cols), (cols - step, cols)} - {(cols, cols)}
    for group in range(len(expected) // r):
        for k0, k1 in sorted(ranges):
            out = empty((k1 - k0, r), F32)
            variant.panel(form.ggml_id, packed, cols, group, k0, k1, out)
            block = np.ascontiguousarray(expected[group * r : (group + 1) * r, k0:k1].T)
            real = slice(0, min(r, rows - group * r))
            assert_same_bits(out[:, real], block[:, real], f"{fmt}, group {group}, depths {k0}-{k1}")
            assert not out[:, real.stop :].any(), "padding rows must be zero"


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_any_bytes_are_packed(variant, fmt: str) -> None:
    """Uniform random bytes, infinite and NaN scales among them: only the payload of a NaN may differ."""
    form, cols, rows = format_named(fmt), 32 * format_named(fmt).block_size, 16
    raw = np.random.default_rng(3).integers(0, 256, (rows, form.row_bytes(cols)), dtype=np.uint8)
    packed = pack(variant, form, raw, rows, cols)
    out = empty((rows, cols), F32)
    variant.rows(form.ggml_id, packed, cols, np.arange(rows), out)
    expected = dequantized(fmt, raw)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(out), nan)
    assert_same_bits(np.where(nan, F32(0), out), np.where(nan, F32(0), expected), fmt)


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_packed_matrices_are_no_larger_than_the_file(variant, fmt: str) -> None:
    """Whole groups of a usual width: within one per cent, and every group starts on a 64-byte boundary.

    The levels of IQ1 are widened, from 11 bits for eight to 8 for five, and where codebooks are in registers
    the indices of IQ2 and IQ3, to 9 or 11 bits.
    """
    wider = {"IQ1_S": 58 / 50, "IQ1_M": 64 / 56}
    if variant.name in ("avx512vbmi", "amx"):
        wider |= {"IQ2_XXS": 70 / 66, "IQ2_XS": 82 / 74, "IQ2_S": 86 / 82, "IQ3_XXS": 106 / 98}
        wider |= {"IQ3_S": 126 / 110}
    form, r = format_named(fmt), variant.rows_per_group
    for cols in (576 // form.block_size * form.block_size, 2048, 2560):
        if cols % form.block_size:
            continue
        one, many = (
            variant.packed_bytes(form.ggml_id, 1, cols),
            variant.packed_bytes(form.ggml_id, 10 * r, cols),
        )
        assert one % 64 == 0 and many == 10 * one
        file = form.row_bytes(cols) * r
        assert file <= one <= file * wider.get(fmt, 1) * 1.01 + 64


def test_sizes_are_checked() -> None:
    variant, form = VARIANTS[-1], format_named("Q8_0")
    raw = raw_blocks("Q8_0", 4, 64, np.random.default_rng(0))
    packed = pack(variant, form, raw, 4, 64)
    with pytest.raises(ValueError, match="sizes of data or out"):
        variant.pack(form.ggml_id, raw.reshape(-1), 4, 64, packed[:-64])
    with pytest.raises(IndexError):
        variant.rows(form.ggml_id, packed, 64, np.array([16]), np.zeros((1, 64), F32))
    with pytest.raises(ValueError, match="k1 - k0"):
        variant.panel(form.ggml_id, packed, 64, 0, 16, 48, np.zeros((32, variant.rows_per_group), F32))


@pytest.mark.real
@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_real_blocks(model: str, request: pytest.FixtureRequest) -> None:
    """The first 40 rows of two tensors of each format that the real files hold."""
    seen: dict[str, int] = {}
    with GgufFile.open(request.getfixturevalue(model)) as file:
        for info in file.tensors.values():
            seen[info.format.name] = seen.get(info.format.name, 0) + 1
            if seen[info.format.name] > 2 or len(info.shape) != 2:
                continue
            rows, cols = min(info.shape[0], 40), info.shape[1]
            raw = np.frombuffer(file.read(info), np.uint8).reshape(info.shape[0], -1)[:rows]
            expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[info.format.name])
            for variant in VARIANTS:
                out = empty((rows, cols), F32)
                variant.rows(
                    info.format.ggml_id,
                    pack(variant, info.format, raw, rows, cols),
                    cols,
                    np.arange(rows),
                    out,
                )
                assert_same_bits(out, expected, f"{info.name} {info.format.name} {variant.name}")
