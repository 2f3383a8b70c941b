"""The codebook and ternary formats as float32: one function per format, bit-equal to the ``gguf`` package.

As in ``dequantize``: (n, block_bytes) uint8 to (n, block_size) float32. Signs and codebook entries are
joined first: their products are exact, so the order changes no bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rase.gguf.fields import Bytes, Floats, fields, half, scaled, signed
from rase.gguf.grids import grid

__all__ = [
    "iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs", "iq4_nl", "iq4_xs", "mxfp4",
    "tq1_0", "tq2_0",
]  # fmt: skip

# The 16 values of a code: a non-linear scale, and twice what E2M1 stands for.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
DELTA = np.float32(0.125)  # what IQ1 weights lie off the integers


def iq4_nl(blocks: Bytes) -> Floats:
    return half(blocks, 0) * IQ4[fields(blocks[:, 2:], 16, 4)]


def iq4_xs(blocks: Bytes) -> Floats:
    # d, upper pairs of the scales (16 bits), their low nibbles[4], codes[128]
    low = _bits(blocks[:, 4:8], np.uint8, range(0, 8, 4))
    high = _bits(blocks[:, 2:4], np.uint16, range(0, 16, 2)).astype(np.uint8)
    return scaled(half(blocks, 0) * signed(low | high << np.uint8(4), 32), IQ4[fields(blocks[:, 8:], 16, 4)])


def mxfp4(blocks: Bytes) -> Floats:
    # exponent e of the scale 2^(e - 127), whose half goes with the doubled values; codes[16]
    e = blocks[:, :1].astype(np.uint32)
    tiny, one = np.uint32(0x00200000), np.uint32(1)
    bits = np.where(e < 2, tiny << np.minimum(e, one), (np.maximum(e, one) - one) << np.uint32(23))
    return bits.view(np.float32) * E2M1[fields(blocks[:, 1:], 16, 4)]


def tq1_0(blocks: Bytes) -> Floats:
    # bytes of five base-3 digits[48], of four[4], d; a byte stands for the fraction byte / 256
    parts = []
    for start, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = np.array([1, 3, 9, 27, 81][:digits], dtype=np.uint8).reshape(1, -1, 1)
        shifted = blocks[:, None, start:stop] * powers  # modulo 256: the digits before are gone
        parts.append((shifted.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).reshape(len(blocks), -1))
    return half(blocks, 52) * signed(np.hstack(parts).astype(np.uint8), 1)


def tq2_0(blocks: Bytes) -> Floats:
    return half(blocks, 64) * signed(fields(blocks[:, :64], 32, 2), 1)


def _bits(packed: Bytes, dtype: Any, shifts: range) -> NDArray[Any]:
    """Fields of little-endian words, ``shifts`` of word 0 first: (n, words * len(shifts))."""
    words = np.ascontiguousarray(packed).view(np.dtype(dtype).newbyteorder("<")).astype(dtype)
    parts = words[:, :, None] >> np.array(shifts, dtype=dtype) & dtype((1 << shifts.step) - 1)
    return parts.reshape(len(packed), -1)


def _signs(masks: NDArray[Any]) -> Floats:
    """(n, k) bytes as (n, 8k) factors: a set bit is -1."""
    bits = np.unpackbits(masks.astype(np.uint8), axis=1, bitorder="little")
    return np.where(bits, np.float32(-1), np.float32(1))


def _even_signs(indices: NDArray[Any]) -> Floats:
    """The same of 7-bit fields: the eighth bit makes the number of minus signs even."""
    seven = indices.astype(np.uint8) & np.uint8(127)
    odd = np.bitwise_xor.reduce([seven >> np.uint8(i) & np.uint8(1) for i in range(7)])
    return _signs(seven | odd << np.uint8(7))


def _entries(name: str, indices: NDArray[Any]) -> Floats:
    """Codebook entries of (n, k) indices, one after the other: (n, 256)."""
    return grid(name)[indices].reshape(len(indices), -1)


def _odd(scales: NDArray[Any]) -> Floats:
    """2 s + 1: the scales count in halves."""
    return scales.astype(np.float32) * np.float32(2) + np.float32(1)


def iq2_xxs(blocks: Bytes) -> Floats:
    # d; per 32 weights: indices[4], then 32 bits of four 7-bit signs and the scale
    words = blocks[:, 2:].reshape(len(blocks), 8, 8)
    indices = words[:, :, :4].reshape(len(blocks), -1)
    rest = np.ascontiguousarray(words[:, :, 4:]).view("<u4").reshape(len(blocks), 8).astype(np.uint32)
    sevens = (rest[:, :, None] >> np.array([0, 7, 14, 21], dtype=np.uint32)).reshape(len(blocks), -1)
    unit = half(blocks, 0) * DELTA
    values = _entries("IQ2_XXS", indices) * _even_signs(sevens & 127)
    return scaled(unit * _odd(rest >> np.uint32(28)), values)


def iq2_xs(blocks: Bytes) -> Floats:
    # d, 16-bit words of index (9 bits) and signs (7)[32], scales[8]
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2").astype(np.uint16)
    unit, scales = half(blocks, 0) * DELTA, _bits(blocks[:, 66:], np.uint8, range(0, 8, 4))
    values = _entries("IQ2_XS", words & np.uint16(511)) * _even_signs(words >> np.uint16(9))
    return scaled(unit * _odd(scales), values)


def iq2_s(blocks: Bytes) -> Floats:
    # d, low bytes of the indices[32], signs[32], upper pairs[8], scales[8]
    high = _bits(blocks[:, 66:74], np.uint8, range(0, 8, 2)).astype(np.uint16)
    indices = blocks[:, 2:34] | high << np.uint16(8)
    unit, scales = half(blocks, 0) * DELTA, _bits(blocks[:, 74:], np.uint8, range(0, 8, 4))
    return scaled(unit * _odd(scales), _entries("IQ2_S", indices) * _signs(blocks[:, 34:66]))


def iq3_xxs(blocks: Bytes) -> Floats:
    # d, indices[64]; per 32 weights 32 bits of four 7-bit signs and the scale
    rest = np.ascontiguousarray(blocks[:, 66:]).view("<u4").astype(np.uint32)
    sevens = (rest[:, :, None] >> np.array([0, 7, 14, 21], dtype=np.uint32)).reshape(len(blocks), -1)
    values = _entries("IQ3_XXS", blocks[:, 2:66]) * _even_signs(sevens & 127)
    return scaled(half(blocks, 0) * np.float32(0.25) * _odd(rest >> np.uint32(28)), values)


def iq3_s(blocks: Bytes) -> Floats:
    # d, low bytes of the indices[64], ninth bits[8], signs[32], scales[4]
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    values = _entries("IQ3_S", blocks[:, 2:66] | ninth << np.uint16(8)) * _signs(blocks[:, 74:106])
    return scaled(half(blocks, 0) * _odd(_bits(blocks[:, 106:], np.uint8, range(0, 8, 4))), values)


def iq1_s(blocks: Bytes) -> Floats:
    # d, low bytes of the indices[32]; per 32 weights 16 bits: four upper triples, scale, sign of delta
    words = np.ascontiguousarray(blocks[:, 34:]).view("<u2").astype(np.uint16)
    high = _bits(blocks[:, 34:], np.uint16, range(0, 12, 3))
    entries = _entries("IQ1", blocks[:, 2:34] | high << np.uint16(8))
    delta = np.where(words >> np.uint16(15), -DELTA, DELTA).repeat(32, axis=1)
    return scaled(half(blocks, 0) * _odd(words >> np.uint16(12) & np.uint16(7)), entries + delta)


def iq1_m(blocks: Bytes) -> Floats:
    # low bytes of the indices[32]; per 8 weights 4 bits: upper triple, the sign of delta; four words[8] of
    # four scales each, whose upper nibbles are d
    nibbles = _bits(blocks[:, 32:48], np.uint8, range(0, 8, 4))
    entries = _entries("IQ1", blocks[:, :32] | (nibbles & np.uint8(7)).astype(np.uint16) << np.uint16(8))
    delta = np.where(nibbles >> np.uint8(3), -DELTA, DELTA).repeat(8, axis=1)
    words = np.ascontiguousarray(blocks[:, 48:]).view("<u2").astype(np.uint16)
    d = np.bitwise_or.reduce((words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16), axis=1)
    scales = _odd(_bits(blocks[:, 48:], np.uint16, range(0, 12, 3)))
    return scaled(d.view(np.float16).astype(np.float32)[:, None] * scales, entries + delta)
