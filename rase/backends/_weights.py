"""Packed weights: every weight of a graph in one arena, filled slice by slice while the file is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rase.backends._memory import Arena
from rase.gguf.dequantize import dequantize

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo

__all__ = ["PackedWeights", "grain", "room"]


def grain(variant: Any, info: TensorInfo) -> int:
    """File bytes that are packed in one piece: a vector whole, of a matrix the rows of one group.

    A stack of matrices, (n, rows, cols), is one tall matrix where groups end with each; else its pieces
    are whole matrices.
    """
    if len(info.shape) == 1:
        return info.nbytes
    return _grain_rows(variant, info) * info.format.row_bytes(info.shape[-1])


def _grain_rows(variant: Any, info: TensorInfo) -> int:
    rows, group = info.shape[-2], int(variant.rows_per_group)
    return rows if len(info.shape) > 2 and rows % group else group


def _packed_bytes(variant: Any, info: TensorInfo) -> int:
    *stack, rows, cols = info.shape
    return math.prod(stack) * int(variant.packed_bytes(info.format.ggml_id, rows, cols))


def room(variant: Any, info: TensorInfo) -> int:
    """Bytes of one weight in memory: vectors as float32, matrices packed."""
    if len(info.shape) == 1:
        return Arena.room(4 * info.shape[0])
    return Arena.room(_packed_bytes(variant, info))


class PackedWeights:
    """Arrays by name in ``arrays``: float32 ``(n,)`` for a vector, uint8 in packed groups for a matrix.

    ``take`` fills them and may be called by several threads: no two slices share a byte. Whoever packs first
    touches the memory, so that its pages are made by all threads.
    """

    def __init__(
        self, variant: Any, infos: Mapping[str, TensorInfo], names: Mapping[str, tuple[str, int]]
    ) -> None:
        """``infos`` are the weights'; ``names`` of tensors -> the weight of each, and its place in a stack.

        Raises ``InsufficientMemory``.
        """
        self.variant, self._infos, self._names = variant, infos, names
        self.arena = Arena(sum(room(variant, info) for info in infos.values()), "the packed weights")
        self.grains = {name: grain(variant, infos[weight]) for name, (weight, _) in names.items()}
        self.arrays: dict[str, Any] = {}
        for info in infos.values():
            if len(info.shape) == 1:
                self.arrays[info.name] = self.arena.take(4 * info.shape[0]).view(np.float32)
            else:
                self.arrays[info.name] = self.arena.take(_packed_bytes(variant, info))

    def take(self, info: TensorInfo, start: int, data: memoryview) -> None:
        """Store the bytes ``data`` of the tensor ``info``, which begin at byte ``start`` of it."""
        (name, place), size = self._names[info.name], info.nbytes
        info, start = self._infos[name], start + place * size
        target = self.arrays[info.name]
        if len(info.shape) == 1:
            target[:] = dequantize(info.format, data, info.shape)
            return
        cols, form, row_bytes = info.shape[-1], info.format.ggml_id, info.format.row_bytes(info.shape[-1])
        piece = _grain_rows(self.variant, info)
        rows = len(data) // row_bytes
        at = start // (piece * row_bytes) * self.variant.packed_bytes(form, piece, cols)
        step = rows if piece == self.variant.rows_per_group else piece  # whole matrices one by one
        for first in range(0, rows, step):
            part = data[first * row_bytes : (first + step) * row_bytes]
            size = self.variant.packed_bytes(form, len(part) // row_bytes, cols)
            self.variant.pack(form, part, len(part) // row_bytes, cols, target[at : at + size])
            at += size
