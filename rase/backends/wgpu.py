"""The wgpu backend: the cpu backend, with prompt matrices on a GPU (extra ``gpu``, opt-in by ``RASE_GPU=1``).

Matrices in Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, Q4_1 and Q5_0 stay quantized on the GPU as well and are unpacked in
its shader; those in other formats, experts, the router, logits and all generated tokens are the CPU's. Where
there is no GPU, or one fails, everything is. A program whose prompts must have another arithmetic (the
portable class, RASE_PREFILL) is the cpu backend's alone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rase.backends import _wgpu_device as device
from rase.backends._stacks import file_names, weight_infos
from rase.backends._weights import PackedWeights
from rase.backends.base import CompileOptions, MemoryEstimate, Program, WeightSource
from rase.backends.check import check_rope_factors
from rase.backends.cpu import CpuBackend, CpuProgram, threads_of
from rase.graph import ops

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["BACKEND", "WgpuBackend"]

_PENDING = 64 << 20  # bytes of uploads that the driver may hold back


class WgpuBackend(CpuBackend):
    """Runs wherever the cpu backend does."""

    name = "wgpu"

    def available(self) -> tuple[bool, str]:
        _, reason = device.gpu()
        return True, f"{super().available()[1]}; prompts on a GPU: {reason}"

    def offload_status(self) -> str:
        return device.status()

    def estimate(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> MemoryEstimate:
        estimate = super().estimate(graph, tensors, options)
        gpu, _ = device.gpu()
        if gpu is None or not gpu.shares_memory:
            return estimate
        infos = self._offloaded(gpu, graph, weight_infos(graph, tensors), options)
        extra = sum(info.nbytes for info in infos.values())
        return MemoryEstimate(**{**vars(estimate), "weights": estimate.weights + extra})

    def compile(self, graph: Graph, weights: WeightSource, options: CompileOptions) -> Program:
        gpu, _ = device.gpu()
        infos = weight_infos(graph, weights.tensors)
        wanted = {} if gpu is None else self._offloaded(gpu, graph, infos, options)
        matrices = {} if gpu is None else _room(gpu, wanted)
        if gpu is None or not matrices:
            return super().compile(graph, weights, options)
        from rase.backends._wgpu_program import WgpuProgram

        plan, threads = self._lower(graph, infos, options, matrices), threads_of(options)
        packed = PackedWeights(self.variant, infos, file_names(graph))
        upload = _Upload(gpu, matrices)

        def take(info: TensorInfo, start: int, data: memoryview) -> None:
            packed.take(info, start, data)
            upload.take(info, start, data)

        weights.deliver(packed.grains, take, max(threads))
        for rope in plan.ropes:
            if rope.factors is not None:
                check_rope_factors(rope.factors, packed.arrays[rope.factors])
        if upload.error is not None:
            device.give_up(upload.error)
            return CpuProgram(self.variant, self._lower(graph, infos, options), packed, options, threads)
        return WgpuProgram(
            self.variant, plan, packed, options, threads, gpu, matrices,
            lambda: self._lower(graph, infos, options))  # fmt: skip

    def _offloaded(
        self, gpu: device.Gpu, graph: Graph, infos: Mapping[str, TensorInfo], options: CompileOptions
    ) -> dict[str, TensorInfo]:
        """The matrices whose prompt rows the GPU multiplies."""
        if options.numerics == "portable" or options.prefill != "auto":
            return {}
        names = {op.weight.name for op in graph.ops if isinstance(op, ops.Linear) and not op.weight.parts}
        return {name: info for name, info in infos.items() if name in names and gpu.takes(info)}


class _Upload:
    """Writes slices to the GPU as they come, from any thread; the first error ends it."""

    def __init__(self, gpu: device.Gpu, matrices: dict[str, device.GpuMatrix]) -> None:
        self.gpu, self.matrices = gpu, matrices
        self.error: Exception | None = None
        self._lock, self._pending = threading.Lock(), 0

    def take(self, info: TensorInfo, start: int, data: memoryview) -> None:
        matrix = self.matrices.get(info.name)
        if matrix is None:
            return
        with self._lock:
            if self.error is not None:
                return
            try:
                matrix.write(self.gpu, start, data)
                self._pending += len(data)
                if self._pending > _PENDING:
                    self.gpu.settle()
                    self._pending = 0
            except Exception as error:  # of another library: the model is loaded without the GPU
                self.error = error


def _room(gpu: device.Gpu, infos: Mapping[str, TensorInfo]) -> dict[str, device.GpuMatrix]:
    """Memory of the GPU for as many matrices as it has room for, in order of the graph."""
    matrices: dict[str, Any] = {}
    for name, info in infos.items():
        try:
            matrices[name] = device.GpuMatrix(gpu, info)
        except Exception:  # no more memory there: the others are the CPU's
            break
    return matrices


BACKEND = WgpuBackend
