"""How stored tensors become the tensors of a graph: as they are, in another order, computed, stacked.

A part gets slices of what is stored, from any thread, and gives slices of the graph's tensor.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rase.errors import CorruptModelFile
from rase.gguf.formats import W4A16, Format, TensorInfo, format_named

__all__ = ["Awq", "Computed", "Give", "Pairs", "Part", "Same", "Tiled", "tiled"]

Give = Callable[[int, memoryview], object]
"""Gets an offset into the bytes of the part, and the bytes from there on."""


class Part(ABC):
    """A tensor of a graph, or one matrix of a stack: ``shape`` and ``format`` are what the graph sees."""

    def __init__(self, stored: TensorInfo) -> None:
        self.stored: tuple[TensorInfo, ...] = (stored,)
        self.shape: tuple[int, ...] = stored.shape
        self.format: Format = stored.format

    @property
    def nbytes(self) -> int:
        return self.format.tensor_bytes(self.shape)

    @property
    def working_bytes(self) -> int:
        """Memory that the part takes while slices pass through it."""
        return 0

    def grain(self, grain: int) -> int:
        """Bytes of what is stored that must come in one slice, for one of ``grain`` bytes to be given."""
        return grain

    @abstractmethod
    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        """Turn a slice of ``stored``, which begins at its byte ``start``, into slices of the part."""


class Same(Part):
    """What is stored, byte for byte."""

    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        give(start, data)


class Pairs(Part):
    """Rows of query and key heads whose rotary pairs are halves, put so that the pairs are neighbours."""

    def __init__(self, stored: TensorInfo, head_dim: int) -> None:
        super().__init__(stored)
        width = (
            stored.format.row_bytes(stored.shape[-1]) if len(stored.shape) > 1 else stored.format.block_bytes
        )
        self._head = head_dim, width

    def grain(self, grain: int) -> int:
        return math.lcm(grain, math.prod(self._head))

    @property
    def working_bytes(self) -> int:
        return self.nbytes

    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        import numpy as np

        head_dim, width = self._head
        halves = np.frombuffer(data, np.uint8).reshape(-1, 2, head_dim // 2, width)
        give(start, _view(halves.swapaxes(1, 2)))


class Tiled(Part):
    """Rows, or columns, of heads that come in ``groups``, put so that the first of each group come first.

    Rows before ``first`` stay. ``heads`` are all of them, each ``head_dim`` wide.
    """

    def __init__(
        self, stored: TensorInfo, groups: int, heads: int, head_dim: int, *, first: int = 0,
        columns: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(stored)
        self._layout = groups, heads, head_dim
        self._first, self._columns = first, columns

    def grain(self, grain: int) -> int:
        row = self.format.row_bytes(self.shape[-1])
        return math.lcm(grain, row) if self._columns else self.stored[0].nbytes

    @property
    def working_bytes(self) -> int:
        return 2 * self.nbytes

    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        import numpy as np

        rows = np.frombuffer(data, np.uint8).reshape(-1, self.format.row_bytes(self.shape[-1]))
        groups, heads, head_dim = self._layout
        if self._columns:
            columns = rows.reshape(len(rows), heads * head_dim, -1).swapaxes(0, 1)
            give(start, _view(tiled(columns, groups, heads).swapaxes(0, 1)))
        else:
            after = tiled(rows[self._first :], groups, heads)
            give(start, _view(np.concatenate([rows[: self._first], after])))


def tiled(values: Any, groups: int, heads: int) -> Any:
    """``values``, whose first axis is ``heads`` equal runs, with the runs in the order of ``Tiled``."""
    runs = values.reshape(groups, heads // groups, -1, *values.shape[1:])
    return runs.swapaxes(0, 1).reshape(values.shape)


class Computed(Part):
    """What ``function`` makes of all values of a small tensor, float32 in and out."""

    def __init__(self, stored: TensorInfo, shape: tuple[int, ...], function: Callable[[Any], Any]) -> None:
        super().__init__(stored)
        self.shape, self.format, self._function = shape, format_named("F32"), function

    def grain(self, grain: int) -> int:
        return self.stored[0].nbytes

    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        import numpy as np

        from rase.gguf.dequantize import dequantize

        values = self._function(dequantize(stored.format, data, stored.shape))
        give(0, _view(np.asarray(values, np.float32)))


class Awq(Part):
    """A matrix of AWQ's GEMM layout, (in, out), as rows of W4A16, those of heads as ``Pairs`` puts them."""

    def __init__(
        self, weights: TensorInfo, zeros: TensorInfo, scales: TensorInfo, head_dim: int | None
    ) -> None:
        super().__init__(weights)
        cols, words = weights.shape if len(weights.shape) == 2 else (0, 0)
        self.stored = (weights, zeros, scales)
        self.shape, self.format, self._head_dim = (8 * words, cols), W4A16, head_dim
        groups = cols // W4A16.block_size
        shapes = ((cols, words), (groups, words), (groups, 8 * words))
        names = ("I32", "I32", "F16")
        for info, shape, name in zip(self.stored, shapes, names, strict=True):
            if (info.shape, info.format.name) != (shape, name) or not groups or cols % W4A16.block_size:
                raise CorruptModelFile(
                    f"AWQ tensor '{info.name}'", expected=f"{name} {shape}, groups of {W4A16.block_size}",
                    found=f"{info.format.name} {info.shape}", tensor=info.name,
                    hint="Choose a version of the model with group size 128, GEMM layout.",
                )  # fmt: skip
        self._held: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def working_bytes(self) -> int:
        return sum(info.nbytes for info in self.stored) + 2 * self.nbytes

    def grain(self, grain: int) -> int:
        return max(info.nbytes for info in self.stored)  # each comes whole

    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        with self._lock:
            self._held[stored.name] = bytes(data)
            if len(self._held) < len(self.stored):
                return
            held, self._held = self._held, {}
        give(0, _view(self._rows(*(held[info.name] for info in self.stored))))

    def _rows(self, weights: bytes, zeros: bytes, scales: bytes) -> Any:
        import numpy as np

        from rase._kernels import awq

        out, cols = self.shape
        rows = np.empty((out, self.format.row_bytes(cols)), np.uint8)
        awq.rows(
            np.frombuffer(weights, "<u4").reshape(cols, -1),
            np.frombuffer(zeros, "<u4").reshape(-1, out // 8),
            np.frombuffer(scales, "<u2").reshape(-1, out), rows,
        )  # fmt: skip
        if self._head_dim is None:
            return rows
        return rows.reshape(-1, 2, self._head_dim // 2, rows.shape[1]).swapaxes(1, 2)


def _view(array: Any) -> memoryview:
    """The bytes of an array in order, read-only."""
    import numpy as np

    whole: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(whole).toreadonly()
