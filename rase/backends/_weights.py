"""Packed weights: every weight of a graph in one arena, filled slice by slice while the file is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rase.backends._memory import Arena
from rase.gguf.dequantize import dequantize

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo

__all__ = ["PackedWeights", "grain", "room"]


def grain(variant: Any, info: TensorInfo) -> int:
    """File bytes that are packed in one piece: a vector whole, of a matrix the rows of one group."""
    if len(info.shape) == 1:
        return info.nbytes
    return int(variant.rows_per_group) * info.format.row_bytes(info.shape[-1])


def room(variant: Any, info: TensorInfo) -> int:
    """Bytes of one weight in memory: vectors as float32, matrices packed."""
    if len(info.shape) == 1:
        return Arena.room(4 * info.shape[0])
    return Arena.room(variant.packed_bytes(info.format.ggml_id, *info.shape))


class PackedWeights:
    """Arrays by name in ``arrays``: float32 ``(n,)`` for a vector, uint8 in packed groups for a matrix.

    ``take`` fills them and may be called by several threads: no two slices share a byte. Whoever packs first
    touches the memory, so that its pages are made by all threads.
    """

    def __init__(self, variant: Any, tensors: Mapping[str, TensorInfo], wanted: Collection[str]) -> None:
        """Raises ``InsufficientMemory``."""
        infos = [info for name, info in tensors.items() if name in wanted]
        self.variant = variant
        self.arena = Arena(sum(room(variant, info) for info in infos), "the packed weights")
        self.grains = {info.name: grain(variant, info) for info in infos}
        self.arrays: dict[str, Any] = {}
        for info in infos:
            if len(info.shape) == 1:
                self.arrays[info.name] = self.arena.take(4 * info.shape[0]).view(np.float32)
            else:
                self.arrays[info.name] = self.arena.take(
                    variant.packed_bytes(info.format.ggml_id, *info.shape)
                )

    def take(self, info: TensorInfo, start: int, data: memoryview) -> None:
        """Store the bytes ``data`` of the weight ``info``, which begin at byte ``start`` of it."""
        target = self.arrays[info.name]
        if len(info.shape) == 1:
            target[:] = dequantize(info.format, data, info.shape)
            return
        cols, form = info.shape[-1], info.format.ggml_id
        rows = len(data) // info.format.row_bytes(cols)
        first = start // self.grains[info.name] * self.variant.packed_bytes(form, 1, cols)
        self.variant.pack(
            form, data, rows, cols, target[first : first + self.variant.packed_bytes(form, rows, cols)]
        )
