"""``MemoryWeights``: a weight source over bytes in memory, for programs of small models without a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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

    def deliver(
        self,
        grains: Mapping[str, int],
        take: Callable[[TensorInfo, int, memoryview], object],
        threads: int = 1,
    ) -> None:
        """In slices of one grain and from one buffer: whoever keeps a view reads garbage."""
        missing = grains.keys() - self.tensors.keys()
        if missing:
            raise KeyError(f"no tensors {sorted(missing)}")
        buffer = bytearray(max(grains.values(), default=0))
        for name, info in self.tensors.items():
            for start in range(0, info.nbytes, grains[name]) if name in grains else ():
                data = self.raw[name][start : start + grains[name]]
                buffer[: len(data)] = data
                take(info, start, memoryview(buffer)[: len(data)].toreadonly())
                buffer[:] = b"\xa5" * len(buffer)

    def floats(self) -> dict[str, np.ndarray]:
        """Every tensor dequantized to float32."""
        return {
            name: dequantize(info.format, self.raw[name], info.shape) for name, info in self.tensors.items()
        }
