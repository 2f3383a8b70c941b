"""What the block formats are unpacked with: float16 scales, packed fields, scaled sub-blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bytes", "Floats", "fields", "half", "scaled", "signed"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte ``at`` of each block, as (n, 1) float32."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def fields(packed: Bytes, width: int, bits: int) -> Bytes:
    """Unpack ``bits``-wide fields: of every ``width`` bytes all lowest fields, then the next higher ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    unpacked = (packed.reshape(len(packed), -1, 1, width) >> shifts) & np.uint8((1 << bits) - 1)
    return unpacked.reshape(len(packed), -1)


def signed(unsigned: Bytes, zero: int) -> Floats:
    return (unsigned.astype(np.int16) - zero).astype(np.float32)


def scaled(scale: Floats, quants: Floats) -> Floats:
    """Multiply sub-blocks: ``scale`` is (n, k), ``quants`` (n, 256) in k equal runs."""
    n, k = scale.shape
    return (scale.reshape(n, k, 1) * quants.reshape(n, k, -1)).reshape(n, -1)
