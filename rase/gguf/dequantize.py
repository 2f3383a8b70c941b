"""Weights of any format as float32, in plain NumPy: slow, obvious, bit-equal to the ``gguf`` package.

Each function takes blocks as a (n, block_bytes) uint8 array and returns (n, block_size) float32. The
layouts are those of ggml's block structures: scales are little-endian float16, small fields are packed
from the low bits up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rase.errors import CorruptModelFile
from rase.gguf import codebooks
from rase.gguf.fields import Bytes, Floats, fields, half, scaled, signed
from rase.gguf.formats import Format

__all__ = ["dequantize"]

GROUP = 4096  # blocks per step, so that temporaries stay small beside the result


def dequantize(fmt: Format, data: Any, shape: Sequence[int]) -> Floats:
    """Return the tensor in ``data`` (any buffer) as a new float32 array of ``shape``.

    Raises ``CorruptModelFile`` when the buffer does not hold exactly the tensor's bytes.
    """
    expected = fmt.tensor_bytes(shape)
    raw = np.frombuffer(data, dtype=np.uint8)
    if raw.size != expected:
        raise CorruptModelFile(
            f"a tensor of format {fmt.name} and shape {tuple(shape)}",
            expected=f"{expected} bytes", found=f"{raw.size} bytes",
        )  # fmt: skip
    blocks = raw.reshape(-1, fmt.block_bytes)
    out = np.empty((len(blocks), fmt.block_size), dtype=np.float32)
    function = _FUNCTIONS[fmt.name]
    step = GROUP * 256 // fmt.block_size
    # A scale that is infinite or NaN stays so in the result; who computes with it decides what that means.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = function(blocks[start : start + step])
    return out.reshape(tuple(shape))


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 bits at byte ``at`` as 0 or 16 each: bit i belongs to weight i."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: Bytes) -> Floats:
    return blocks.copy().view("<f4")


def _f16(blocks: Bytes) -> Floats:
    return blocks.copy().view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    # A bfloat16 is the upper half of a float32.
    return (blocks.copy().view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * signed(fields(blocks[:, 2:], 16, 4), 8)


def _q4_1(blocks: Bytes) -> Floats:
    return half(blocks, 0) * fields(blocks[:, 4:], 16, 4).astype(np.float32) + half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * signed(fields(blocks[:, 6:], 16, 4) | _fifth_bits(blocks, 2), 16)


def _q5_1(blocks: Bytes) -> Floats:
    quants = fields(blocks[:, 8:], 16, 4) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * quants.astype(np.float32) + half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _lowered(scale: Floats, quants: Floats, minimum: Floats) -> Floats:
    """``scaled`` minus one minimum (n, k) per sub-block."""
    n, k = scale.shape
    return (scaled(scale, quants).reshape(n, k, -1) - minimum.reshape(n, k, 1)).reshape(n, -1)


def _q2_k(blocks: Bytes) -> Floats:
    # scales[16]: low nibble scale, high nibble minimum; qs[64]; d; dmin
    scales, d, dmin = blocks[:, :16], half(blocks, 80), half(blocks, 82)
    quants = fields(blocks[:, 16:80], 32, 2).astype(np.float32)
    low, high = (scales & np.uint8(15)).astype(np.float32), (scales >> np.uint8(4)).astype(np.float32)
    return _lowered(d * low, quants, dmin * high)


def _q3_k(blocks: Bytes) -> Floats:
    # hmask[32], qs[64], scales[12] (8 bytes of low nibbles, 4 bytes of upper pairs), d
    scales = fields(blocks[:, 96:104], 8, 4) | fields(blocks[:, 104:108], 4, 2) << np.uint8(4)
    low, high = fields(blocks[:, 32:96], 32, 2), fields(blocks[:, :32], 32, 1)
    quants = signed(low | high << np.uint8(2), 4)  # a set bit of hmask means: nothing to subtract
    return scaled(half(blocks, 108) * signed(scales, 32), quants)


def _six_bit_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """The eight scales and eight minimums of Q4_K and Q5_K from their 12 bytes, each (n, 8)."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    low, top, four = np.uint8(0x3F), np.uint8(0x30), np.uint8(4)
    scales = np.hstack([first & low, (rest & np.uint8(15)) | (first >> np.uint8(2)) & top])
    minimums = np.hstack([second & low, (rest >> four) | (second >> np.uint8(2)) & top])
    return scales.astype(np.float32), minimums.astype(np.float32)


def _q4_k(blocks: Bytes) -> Floats:
    # d, dmin, scales[12], qs[128]
    scales, minimums = _six_bit_scales(blocks[:, 4:16])
    quants = fields(blocks[:, 16:], 32, 4).astype(np.float32)
    return _lowered(half(blocks, 0) * scales, quants, half(blocks, 2) * minimums)


def _q5_k(blocks: Bytes) -> Floats:
    # d, dmin, scales[12], qh[32], qs[128]
    scales, minimums = _six_bit_scales(blocks[:, 4:16])
    quants = fields(blocks[:, 48:], 32, 4) | fields(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return _lowered(half(blocks, 0) * scales, quants.astype(np.float32), half(blocks, 2) * minimums)


def _q6_k(blocks: Bytes) -> Floats:
    # ql[128], qh[64], scales[16] signed, d
    quants = fields(blocks[:, :128], 64, 4) | fields(blocks[:, 128:192], 32, 2) << np.uint8(4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scaled(half(blocks, 208) * scales, signed(quants, 32))


def _w4a16(blocks: Bytes) -> Floats:
    # d, zero point, qs[64]: weight = d * code - d * zero, both products exact
    d, quants = half(blocks, 0), blocks[:, 4:, None] >> np.array([0, 4], np.uint8) & np.uint8(15)
    return d * quants.reshape(len(blocks), -1).astype(np.float32) - d * half(blocks, 2)


_FUNCTIONS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1,
    "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "IQ4_NL": codebooks.iq4_nl, "IQ4_XS": codebooks.iq4_xs, "MXFP4": codebooks.mxfp4,
    "TQ1_0": codebooks.tq1_0, "TQ2_0": codebooks.tq2_0,
    "IQ3_XXS": codebooks.iq3_xxs, "IQ3_S": codebooks.iq3_s, "IQ2_XXS": codebooks.iq2_xxs,
    "IQ2_XS": codebooks.iq2_xs, "IQ2_S": codebooks.iq2_s, "IQ1_S": codebooks.iq1_s, "IQ1_M": codebooks.iq1_m,
    "W4A16": _w4a16,
}  # fmt: skip
