"""Quantized weights on a torch device: kept as the file has them, unpacked where they are used.

The layouts are those of ``gguf/dequantize.py``, whose values these functions give bit for bit in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rase.gguf.formats import Format

__all__ = ["UNPACKED", "Matrix"]

CHUNK = 1 << 24  # weights that are unpacked at one time


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _fields(packed: Tensor, width: int, bits: int) -> Tensor:
    """Of every ``width`` bytes all lowest fields of ``bits`` bits, then the next higher ones; int32."""
    parts = packed.reshape(len(packed), -1, 1, width).int()
    shifts = torch.arange(0, 8, bits, dtype=torch.int32, device=packed.device).reshape(1, 1, -1, 1)
    return ((parts >> shifts) & ((1 << bits) - 1)).reshape(len(packed), -1)


def _fifth(blocks: Tensor, at: int) -> Tensor:
    """The 32 bits at byte ``at`` as 0 or 16 each: bit i belongs to weight i."""
    bits = torch.arange(8, dtype=torch.int32, device=blocks.device)
    return ((blocks[:, at : at + 4].int()[:, :, None] >> bits & 1) << 4).reshape(len(blocks), 32)


def _scaled(scale: Tensor, quants: Tensor) -> Tensor:
    n, k = scale.shape
    return (scale.reshape(n, k, 1) * quants.float().reshape(n, k, -1)).reshape(n, -1)


def _lowered(scale: Tensor, quants: Tensor, minimum: Tensor) -> Tensor:
    n, k = scale.shape
    return (_scaled(scale, quants).reshape(n, k, -1) - minimum.reshape(n, k, 1)).reshape(n, -1)


def _q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_fields(b[:, 2:], 16, 4) - 8).float()


def _q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _fields(b[:, 4:], 16, 4).float() + _half(b, 2)


def _q5_0(b: Tensor) -> Tensor:
    return _half(b, 0) * ((_fields(b[:, 6:], 16, 4) | _fifth(b, 2)) - 16).float()


def _q5_1(b: Tensor) -> Tensor:
    return _half(b, 0) * (_fields(b[:, 8:], 16, 4) | _fifth(b, 4)).float() + _half(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return _half(b, 0) * b[:, 2:].contiguous().view(torch.int8).float()


def _q2_k(b: Tensor) -> Tensor:
    scales = b[:, :16]
    low, high = (scales & 15).float(), (scales >> 4).float()
    return _lowered(_half(b, 80) * low, _fields(b[:, 16:80], 32, 2), _half(b, 82) * high)


def _q3_k(b: Tensor) -> Tensor:
    scales = (_fields(b[:, 96:104], 8, 4) | _fields(b[:, 104:108], 4, 2) << 4) - 32
    quants = (_fields(b[:, 32:96], 32, 2) | _fields(b[:, :32], 32, 1) << 2) - 4
    return _scaled(_half(b, 108) * scales.float(), quants)


def _six_bit_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    first, second, rest = (packed[:, at : at + 4].int() for at in (0, 4, 8))
    scales = torch.cat([first & 63, (rest & 15) | (first >> 2) & 48], 1)
    minimums = torch.cat([second & 63, (rest >> 4) | (second >> 2) & 48], 1)
    return scales.float(), minimums.float()


def _q4_k(b: Tensor) -> Tensor:
    scales, minimums = _six_bit_scales(b[:, 4:16])
    return _lowered(_half(b, 0) * scales, _fields(b[:, 16:], 32, 4), _half(b, 2) * minimums)


def _q5_k(b: Tensor) -> Tensor:
    scales, minimums = _six_bit_scales(b[:, 4:16])
    quants = _fields(b[:, 48:], 32, 4) | _fields(b[:, 16:48], 32, 1) << 4
    return _lowered(_half(b, 0) * scales, quants, _half(b, 2) * minimums)


def _q6_k(b: Tensor) -> Tensor:
    quants = (_fields(b[:, :128], 64, 4) | _fields(b[:, 128:192], 32, 2) << 4) - 32
    scales = b[:, 192:208].contiguous().view(torch.int8).float()
    return _scaled(_half(b, 208) * scales, quants)


UNPACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": lambda b: b.view(torch.float32), "F16": lambda b: b.view(torch.float16).float(),
    "BF16": lambda b: b.view(torch.bfloat16).float(),
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


class Matrix:
    """A matrix (rows, cols), or a stack of them as one tall matrix, resident on a device.

    ``data`` is its blocks, uint8 ``(rows, bytes of a row)``; or, without ``form``, its weights in bfloat16.
    """

    def __init__(self, data: Tensor, form: Format | None, cols: int) -> None:
        self.data, self.form, self.cols = data, form, cols
        self.in_float32 = form is not None and form.name == "F32"

    def rows(self, index: Tensor | slice) -> Tensor:
        """The rows ``index``, in float32."""
        part = self.data[index]
        if self.form is None:
            return part.float()
        blocks = part.reshape(-1, self.form.block_bytes)
        return UNPACKED[self.form.name](blocks).reshape(-1, self.cols)

    def times(self, x: Tensor, start: int, count: int, dtype: Any) -> Tensor:
        """x · Wᵀ for the rows ``start`` to ``start + count``, float32; both sides in ``dtype``."""
        x = x.to(dtype)
        step = max(1, CHUNK // self.cols)
        parts = [
            torch.nn.functional.linear(x, self.rows(slice(first, min(first + step, start + count))).to(dtype))
            for first in range(start, start + count, step)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).float()
