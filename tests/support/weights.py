"""``MemoryWeights``: a weight source over bytes in memory, for programs of small models without a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from rase.gguf.dequantize import dequantize
from rase.gguf.formats import TensorInfo, format_named

Raw = tuple[bytes, tuple[int, ...], str]  # bytes, shape in NumPy order, format


class MemoryWeights:
    """Tensors given as float arrays (stored as F32) or as ``(bytes, shape, format)``."""

    def __init__(self, tensors: Mapping[str, np.ndarray | Raw]) -> None:
        self.raw: dict[str, bytes] = {}
        self.tensors: dict[str, TensorInfo] = {}
        offset = 0
        for name, tensor in tensors.items():
            if isinstance(tensor, np.ndarray):
                tensor = (np.ascontiguousarray(tensor, "<f4").tobytes(), tensor.shape, "F32")
            raw, shape, fmt = tensor
            self.raw[name] = raw
            self.tensors[name] = TensorInfo(name, tuple(shape), format_named(fmt), 0, offset, len(raw))
            offset += len(raw)

    def stream(self, wanted: Collection[str]) -> Iterator[tuple[TensorInfo, memoryview]]:
        """Like a file's: one buffer for all, so whoever keeps a view instead of a copy reads garbage."""
        missing = set(wanted) - self.tensors.keys()
        if missing:
            raise KeyError(f"no tensors {sorted(missing)}")
        buffer = bytearray(max(len(raw) for raw in self.raw.values()))
        for name, info in self.tensors.items():
            if name in wanted:
                buffer[: info.nbytes] = self.raw[name]
                view = memoryview(buffer)[: info.nbytes].toreadonly()
                yield info, view
                buffer[:] = b"\xa5" * len(buffer)

    def floats(self) -> dict[str, np.ndarray]:
        """Every tensor dequantized to float32."""
        return {
            name: dequantize(info.format, self.raw[name], info.shape) for name, info in self.tensors.items()
        }
