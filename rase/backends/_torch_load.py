"""Reads the weights of a graph onto a torch device and makes a program of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rase.backends._stacks import file_names
from rase.backends._torch_formats import Matrix
from rase.backends._torch_program import TorchProgram
from rase.backends.check import check_rope_factors
from rase.errors import InsufficientMemory
from rase.gguf.dequantize import dequantize
from rase.graph import ops

if TYPE_CHECKING:
    from rase.backends.base import CompileOptions, WeightSource
    from rase.backends.torch import TorchBackend
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["Resident", "load", "make_program"]


class Resident:
    """Keeps slices of tensors on ``device``: matrices as blocks or in bfloat16, vectors in float32."""

    def __init__(
        self, infos: Mapping[str, TensorInfo], names: Mapping[str, tuple[str, int]], device: Any, weights: str
    ) -> None:
        """``infos`` are the weights'; ``names`` of tensors -> the weight of each, and its place in a stack.

        Raises ``InsufficientMemory``.
        """
        self._infos, self._names, self._device, self._packed = infos, names, device, weights == "packed"
        self.vectors: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        try:
            for info in infos.values():
                if len(info.shape) > 1:
                    rows, cols = math.prod(info.shape[:-1]), info.shape[-1]
                    width, kind = (
                        (info.format.row_bytes(cols), torch.uint8) if self._packed else (cols, torch.bfloat16)
                    )
                    self.data[info.name] = torch.empty((rows, width), dtype=kind, device=device)
        except (torch.OutOfMemoryError, RuntimeError):
            needed = sum(info.nbytes for info in infos.values())
            raise InsufficientMemory("the weights on the device", needed=needed, available=0) from None

    def take(self, tensor: TensorInfo, start: int, data: memoryview) -> None:
        """Store ``data``, which begins at byte ``start`` of ``tensor``: whole rows."""
        name, place = self._names[tensor.name]
        info = self._infos[name]
        if len(info.shape) == 1:
            self.vectors[name] = torch.from_numpy(dequantize(info.format, data, info.shape)).to(self._device)
            return
        row = info.format.row_bytes(info.shape[-1])
        first, count = (place * tensor.nbytes + start) // row, len(data) // row
        if self._packed:
            part = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(count, row).copy())
        else:
            part = torch.from_numpy(dequantize(info.format, data, (count, info.shape[-1])))
        self.data[name][first : first + count] = part.to(self._device, self.data[name].dtype)

    def matrices(self) -> dict[str, Matrix]:
        """What was taken."""
        return {
            name: Matrix(
                data, self._infos[name].format if self._packed else None, self._infos[name].shape[-1]
            )
            for name, data in self.data.items()
        }


def load(
    backend: TorchBackend, graph: Graph, infos: Mapping[str, TensorInfo], weights: WeightSource,
    options: CompileOptions,
) -> TorchProgram:  # fmt: skip
    """Read every weight once."""
    from rase.backends.torch import DEVICES, grain

    device, names = torch.device(DEVICES[backend.device]), file_names(graph)
    resident = Resident(infos, names, device, backend.weights)
    weights.deliver({name: grain(weights.tensors[name]) for name in names}, resident.take)
    return make_program(graph, resident, device, backend.prompt(options), backend.weights, options)


def make_program(
    graph: Graph, resident: Resident, device: Any, prompt: str, weights: str, options: CompileOptions
) -> TorchProgram:
    """The program of weights that are there. Raises ``CorruptModelFile`` for impossible rope factors."""
    ropes = list(dict.fromkeys(op.rope for op in graph.ops if isinstance(op, ops.Rotate)))
    named = [rope.factors for rope in ropes if rope.factors is not None]
    factors = {name: resident.vectors[name].cpu().numpy() for name in named}
    for name, values in factors.items():
        check_rope_factors(name, values)
    program = TorchProgram(
        graph, resident.matrices(), resident.vectors, device, prompt, weights, options.max_batch_tokens,
    )  # fmt: skip
    program.add_ropes(ropes, factors)
    return program
