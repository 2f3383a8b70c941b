"""How stored tensors become the tensors of a graph: as they are, in another row order, shifted, stacked.

A part gets slices of what is stored, from any thread, and gives slices of the graph's tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rase.gguf.formats import Format, TensorInfo, format_named

__all__ = ["Give", "Pairs", "Part", "Same", "Shifted"]

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


class Shifted(Part):
    """A norm's weights plus what its code adds to them, in float32."""

    def __init__(self, stored: TensorInfo, offset: float) -> None:
        super().__init__(stored)
        self.format, self._offset = format_named("F32"), offset

    def grain(self, grain: int) -> int:
        return self.stored[0].nbytes

    def take(self, stored: TensorInfo, start: int, data: memoryview, give: Give) -> None:
        import numpy as np

        from rase.gguf.dequantize import dequantize

        give(0, _view(dequantize(stored.format, data, stored.shape) + np.float32(self._offset)))


def _view(array: Any) -> memoryview:
    """The bytes of an array in order, read-only."""
    import numpy as np

    whole: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(whole).toreadonly()
