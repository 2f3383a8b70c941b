"""A cpu program whose prompt rows of some matrices are multiplied on a GPU.

The CPU walks its phases as always, and stops behind each phase of matrices: there the GPU's products of the
prompt rows go to where the CPU's would be. Generated tokens never leave the CPU.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rase import profiling
from rase.backends._wgpu_device import Gpu, GpuFailed, GpuMatrix, Products, give_up
from rase.backends.cpu import CpuProgram
from rase.errors import DeviceLost

if TYPE_CHECKING:
    from rase.backends._lowering import Lowering
    from rase.backends._weights import PackedWeights
    from rase.backends.base import Batch, CompileOptions

__all__ = ["WgpuProgram", "most_outputs"]

REVISION = 1


class WgpuProgram(CpuProgram):
    """``matrices`` by weight name are on ``gpu``; ``plain`` makes the plan of the cpu backend alone."""

    def __init__(
        self, variant: Any, plan: Lowering, weights: PackedWeights, options: CompileOptions,
        threads: tuple[int, int], gpu: Gpu, matrices: dict[str, GpuMatrix], plain: Callable[[], Lowering],
    ) -> None:  # fmt: skip
        super().__init__(variant, plan, weights, options, threads)
        self._cpu_class, self._plain = self.numerics_class, plain
        adapter = re.sub(r"[^A-Za-z0-9.]+", "-", gpu.name).strip("-")  # which contracts as it likes
        self.numerics_class = f"wgpu-{REVISION}/{adapter}/{self._cpu_class}"
        self.one_arithmetic = False
        self.offloaded = frozenset(matrices)
        depth = max(matrix.depth for matrix in matrices.values())
        phases, rows = self._walker.steps_of_phases(), self.max_batch_tokens
        self._products: Products | None = Products(gpu, rows, depth, most_outputs(plan, phases))
        self._stops = _stops(plan, phases, matrices, rows)

    def _walk(self, batch: Batch, generated: int, arguments: tuple[Any, ...]) -> Any:
        if self._products is None or generated == len(batch.ids):
            return super()._walk(batch, generated, arguments)
        spent, begin = np.zeros(3, np.int64), 0
        timed = profiling.enabled()
        try:
            for end, x, products in self._stops:
                part = self._walker.run(*arguments, begin, end)
                spent += part if timed else 0
                self._multiply(x[generated : len(batch.ids)], products, generated, timed)
                begin = end
            part = self._walker.run(*arguments, begin)
        except GpuFailed as error:
            self._fall_back(error)
            raise DeviceLost(
                "the GPU failed; the model goes on without it", found=error.found, hint="Run the step again."
            ) from error
        return tuple((spent + part).tolist()) if timed else None

    def _multiply(self, x: Any, products: list[tuple[GpuMatrix, Any]], first: int, timed: bool) -> None:
        """The products of the prompt rows ``x`` go to the rows from ``first`` on."""
        assert self._products is not None
        start = time.perf_counter_ns() if timed else 0
        found = self._products.run(np.ascontiguousarray(x), [matrix for matrix, _ in products])
        for (_, out), rows in zip(products, found, strict=True):
            out[first : first + len(x)] = rows
        if timed:
            profiling.add("gemm_gpu_ns", time.perf_counter_ns() - start)
            profiling.add("gemm_gpu_calls", len(products))

    def _fall_back(self, error: GpuFailed) -> None:
        """Be a program of the cpu backend from now on, with the same weights and pages."""
        give_up(error)
        plan = self._plain()
        self._products, self._stops, self.offloaded = None, [], frozenset()
        self._follow(plan)
        self.numerics_class, self.one_arithmetic = self._cpu_class, plan.prompt == "int8"


Stop = tuple[int, Any, list[tuple[GpuMatrix, Any]]]


def _stops(
    plan: Lowering, phases: list[tuple[int, int]], matrices: dict[str, GpuMatrix], rows: int
) -> list[Stop]:
    """Behind which phases the GPU multiplies: what it reads, float32 (rows, depth), and where results go."""

    def view(slot: int, columns: int) -> Any:
        return plan.places[slot].view(np.float32).reshape(rows, -1)[:, :columns]

    stops: list[Stop] = []
    for end, (first, last) in enumerate(phases, 1):
        by_input: dict[tuple[int, int], list[tuple[GpuMatrix, Any]]] = {}
        for _, fields in plan.steps[first:last]:
            if fields.get("elsewhere"):
                product = (matrices[fields["packed"]], view(fields["out"], fields["rows"]))
                by_input.setdefault((fields["x"], fields["cols"]), []).append(product)
        stops += [(end, view(*source), products) for source, products in by_input.items()]
    return stops


def most_outputs(plan: Lowering, phases: list[tuple[int, int]]) -> int:
    """The most elements that the matrices of one phase give for a row."""
    counts = [0]
    for first, last in phases:
        counts.append(sum(fields["rows"] for _, fields in plan.steps[first:last] if fields.get("elsewhere")))
    return max(counts)
