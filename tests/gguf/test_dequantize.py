"""Dequantization is bit-equal to the ``gguf`` package, for every format and every bit pattern."""

from __future__ import annotations

import numpy as np
import pytest

from rase.errors import CorruptModelFile
from rase.gguf.dequantize import GROUP, dequantize
from rase.gguf.formats import FORMATS, format_named
from rase.gguf.reader import GgufFile
from rase.testing.blocks import random_blocks
from tests.support.gguf_build import ALL_FORMATS, weights


def by_the_package(raw: np.ndarray, fmt: str, shape: tuple[int, ...]) -> np.ndarray:
    import gguf

    rows = raw.reshape(*shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[fmt])


def assert_same_bits(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert found.dtype == np.float32 and found.shape == expected.shape, what
    different = np.flatnonzero(found.reshape(-1).view(np.uint32) != expected.reshape(-1).view(np.uint32))
    assert different.size == 0, f"{what}: {different.size} weights differ, the first at {different[0]}"


def test_the_formats_are_in_the_table() -> None:
    import gguf

    assert [form.name for form in FORMATS.values()] == [
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
        "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S",
        "IQ1_S", "IQ1_M",
    ]  # fmt: skip
    assert {form.name for form in FORMATS.values()} == set(ALL_FORMATS)
    for form in FORMATS.values():
        kind = gguf.GGMLQuantizationType[form.name]
        assert kind.value == form.ggml_id
        assert gguf.GGML_QUANT_SIZES[kind] == (form.block_size, form.block_bytes)


@pytest.mark.parametrize("fmt", ALL_FORMATS)
def test_any_bytes_give_the_bits_of_the_package(fmt: str) -> None:
    """Uniform random bytes: infinite and NaN scales, denormals and negative zeros are among them."""
    form = format_named(fmt)
    rng = np.random.default_rng(form.ggml_id)
    raw = rng.integers(0, 256, (1500, form.block_bytes), dtype=np.uint8)
    shape = (30, 50 * form.block_size)
    assert_same_bits(dequantize(form, raw.tobytes(), shape), by_the_package(raw, fmt, shape), fmt)


@pytest.mark.parametrize("fmt", ALL_FORMATS)
def test_more_blocks_than_one_group(fmt: str) -> None:
    form = format_named(fmt)
    shape = (3, GROUP * 256 // 3 // form.block_size * form.block_size + form.block_size)
    raw = np.frombuffer(random_blocks(fmt, shape, np.random.default_rng(7)), dtype=np.uint8)
    assert_same_bits(dequantize(form, memoryview(raw), shape), by_the_package(raw, fmt, shape), fmt)


@pytest.mark.parametrize("fmt", ALL_FORMATS)
def test_random_blocks_are_finite_and_of_the_wanted_size(fmt: str) -> None:
    shape = (16, 512)
    values = weights(random_blocks(fmt, shape, np.random.default_rng(3), std=0.05), shape, fmt)
    assert np.isfinite(values).all()
    centre = 0.03 if fmt == "TQ2_0" else 0.02  # a random field of two bits may be 3, which stands for 2
    assert 0.03 < values.std() < 0.08 and abs(values.mean()) < centre


@pytest.mark.real
@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_real_blocks(model: str, request: pytest.FixtureRequest) -> None:
    """Up to 64 rows of several tensors of each format that the real files hold."""
    seen: dict[str, int] = {}
    with GgufFile.open(request.getfixturevalue(model)) as file:
        for info in file.tensors.values():
            seen[info.format.name] = seen.get(info.format.name, 0) + 1
            if seen[info.format.name] > 6:
                continue
            shape = (min(info.shape[0], 64), info.shape[1]) if len(info.shape) == 2 else info.shape
            raw = np.frombuffer(file.read(info), dtype=np.uint8)[: info.format.tensor_bytes(shape)]
            expected = by_the_package(raw, info.format.name, shape)
            assert_same_bits(dequantize(info.format, raw, shape), expected, info.name)
    wanted = {"smollm2": {"F32", "Q4_1", "Q8_0"}, "gemma": {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}}[model]
    assert wanted <= set(seen), f"formats in the file: {seen}"


def test_a_buffer_of_another_length_is_refused() -> None:
    with pytest.raises(CorruptModelFile, match="expected 36 bytes, found 35 bytes"):
        dequantize(format_named("Q4_0"), bytes(35), (2, 32))
