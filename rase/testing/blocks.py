"""Random blocks of every format: valid bytes of a tensor whose weights have a chosen size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rase.gguf.dequantize import dequantize
from rase.gguf.formats import format_named

__all__ = ["get_half", "random_blocks", "set_half"]

# Where a block keeps its scale and its minimum, and the minimum per unit of scale that centres the weights.
# MXFP4 has an exponent at byte 0, and IQ1_M a float16 in the upper nibbles of four words from byte 48.
_SCALES: dict[str, tuple[int, int | None, float]] = {
    "Q4_0": (0, None, 0), "Q4_1": (0, 2, -7.5), "Q5_0": (0, None, 0), "Q5_1": (0, 2, -15.5),
    "Q8_0": (0, None, 0),
    "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0), "IQ4_NL": (0, None, 0), "IQ4_XS": (0, None, 0), "MXFP4": (0, None, 0),
    "TQ1_0": (52, None, 0), "TQ2_0": (64, None, 0), "IQ3_XXS": (0, None, 0), "IQ3_S": (0, None, 0),
    "IQ2_XXS": (0, None, 0), "IQ2_XS": (0, None, 0), "IQ2_S": (0, None, 0), "IQ1_S": (0, None, 0),
    "IQ1_M": (48, None, 0),
}  # fmt: skip


def set_half(fmt: str, blocks: np.ndarray, at: int, values: np.ndarray) -> None:
    """Write float16 ``values`` as the scale (or, beside it, the minimum) of (n, block_bytes) uint8 blocks.

    MXFP4 gets the nearest power of two.
    """
    half = np.asarray(values).astype("<f2")
    if fmt == "MXFP4":
        with np.errstate(divide="ignore"):
            exponent = np.rint(np.log2(np.abs(half.astype(np.float64))))
        blocks[:, 0] = np.clip(exponent + 128, 0, 254).astype(np.uint8)
    elif fmt == "IQ1_M":
        nibbles = half.view("<u2").reshape(-1, 1) >> np.array([0, 4, 8, 12], np.uint16) & np.uint16(15)
        blocks[:, 49:56:2] = blocks[:, 49:56:2] & 15 | (nibbles << 4).astype(np.uint8)
    else:
        blocks[:, at : at + 2] = half.reshape(-1, 1).view(np.uint8)


def get_half(fmt: str, blocks: np.ndarray, at: int) -> np.ndarray:
    """The scales that ``set_half`` wrote, as (n,) float32."""
    if fmt == "MXFP4":
        return np.ldexp(np.float32(1), blocks[:, 0].astype(np.int32) - 128).astype(np.float32)
    if fmt == "IQ1_M":
        nibbles = (blocks[:, 49:56:2] >> 4).astype(np.uint16) << np.array([0, 4, 8, 12], np.uint16)
        return np.asarray(np.bitwise_or.reduce(nibbles, axis=1).view(np.float16).astype(np.float32))
    return np.asarray(blocks[:, at : at + 2].copy().view("<f2").astype(np.float32).reshape(-1))


def random_blocks(fmt: str, shape: Sequence[int], rng: np.random.Generator, std: float = 0.05) -> bytes:
    """Random valid bytes of a tensor of ``shape`` (NumPy order) in any format of GGUF.

    Every bit of the quants and of the in-block scales is random; the float16 scales are finite and such
    that the weights have about the standard deviation ``std``.
    """
    form = format_named(fmt)
    nbytes = form.tensor_bytes(shape)
    if form.block_size == 1:
        return _floats(rng.normal(0, std, tuple(shape)).astype(np.float32), fmt)
    blocks = rng.integers(0, 256, (nbytes // form.block_bytes, form.block_bytes), dtype=np.uint8)
    scale_at, minimum_at, centre = _SCALES[fmt]

    def set_scales(scale: np.ndarray) -> None:
        set_half(fmt, blocks, scale_at, scale)
        if minimum_at is not None:
            set_half(fmt, blocks, minimum_at, scale * centre)

    set_scales(np.ones(len(blocks)))
    unit = float(np.std(dequantize(form, blocks, (len(blocks), form.block_size)))) or 1.0
    set_scales(std / unit * rng.uniform(0.5, 1.5, len(blocks)))
    return blocks.tobytes()


def _floats(array: np.ndarray, fmt: str) -> bytes:
    """``array``, float32, in a float format, rounded to nearest even."""
    if fmt == "BF16":
        bits = array.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2"}[fmt]).tobytes()
