"""The cpu backend: weights packed for this processor's kernels, one parallel region per pass over a graph.

Numerics (design rules R1 to R8): generated tokens take the integer path; prompt tokens take bf16 tiles where
the processor has AMX (``prefill="bf16"``), else the integer path too (``"int8"``); ``"f32"`` multiplies them
in float32. K and V are float16, or Q8_0 where that is asked for. The bits of a request depend on the numerics
class alone.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rase import env, profiling
from rase.backends import _fork
from rase.backends._lowering import Lowering, refuse_unknown
from rase.backends._memory import Arena
from rase.backends._rows import RowMemory
from rase.backends._stacks import file_names, weight_infos
from rase.backends._states import States
from rase.backends._threads import decode_threads, prefill_threads
from rase.backends._weights import PackedWeights, grain, room
from rase.backends.base import (
    PAGE_TOKENS,
    Backend,
    Batch,
    CompileOptions,
    MemoryEstimate,
    Program,
    WeightSource,
    most_pages,
)  # fmt: skip
from rase.backends.check import check_rope_factors, decode_rules
from rase.errors import BackendError, BackendUnavailable, UnsupportedFormat
from rase.graph import ops
from rase.graph.ops import Graph

if TYPE_CHECKING:
    from rase._kernels.batch import BatchView
    from rase._kernels.sampler import Row
    from rase.backends.limits import Limits
    from rase.gguf.formats import TensorInfo

__all__ = ["BACKEND", "REVISION", "CpuBackend", "CpuProgram", "select_variant", "threads_of"]

REVISION = 2  # of the arithmetic: a change of any bit raises it
_KV = {"f16": 0, "q8_0": 1}  # RASE_KV_* of kernels.h
_POPULATE_FROM = 4 << 20  # bytes of pages that are worth a thread
_ROPE_STEP = 1024  # positions by which rotary tables grow


def select_variant() -> Any:
    """The kernels for this machine, or those that RASE_ISA names. Raises ``BackendUnavailable``."""
    from rase._kernels.kernels import Variant, variants

    built = variants()
    runnable = [name for name, missing in built if missing is None]
    wanted = env.get("RASE_ISA")
    if wanted is None:
        return Variant(runnable[-1])
    if wanted not in dict(built):
        raise BackendUnavailable(
            f"RASE_ISA={wanted} is not an instruction set of this build",
            expected="one of " + ", ".join(dict(built)),
        )
    if wanted not in runnable:
        raise BackendUnavailable(
            f"RASE_ISA={wanted} does not run on this machine", found=f"no {dict(built)[wanted]}",
            hint="Unset RASE_ISA, or use one of " + ", ".join(runnable) + ".",
        )  # fmt: skip
    return Variant(wanted)


class CpuBackend(Backend):
    """Every x86-64 and 64-bit ARM processor; faster with AVX2, AVX-VNNI, AVX-512 or dot products."""

    name = "cpu"

    def __init__(self) -> None:
        self.variant = select_variant()

    def available(self) -> tuple[bool, str]:
        return True, f"{self.variant.name}, {decode_threads()} threads"

    def estimate(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> MemoryEstimate:
        infos = weight_infos(graph, tensors)
        plan = self._lower(graph, infos, options)
        widest = max((weight.shape[-1] for weight in graph.weights.values()), default=0)
        workers = max(threads_of(options))
        attention = [op for op in graph.ops if isinstance(op, ops.Attention)]
        shapes = {(op.n_heads // op.n_kv_heads, op.head_dim) for op in attention}
        tasks = (self.variant.attention_floats(*shape) for shape in shapes)
        tiles = (512 << 10) + 2048 * options.max_batch_tokens if self._prompt(options) == "bf16" else 0
        per_worker = 4 * max(self.variant.rows_per_group * widest, *tasks, 0) + tiles
        parts = max((op.n_heads * (op.head_dim + 31) for op in attention), default=0)  # as plan.pyx
        shared = 4 * max(2**18, parts * (graph.context_length // 256 + 2))
        return MemoryEstimate(
            weights=sum(room(self.variant, info) for info in infos.values()), pages=plan.page_bytes,
            scratch=plan.scratch_bytes + workers * per_worker + shared, page_tokens=PAGE_TOKENS,
            threads=workers, most=most_pages(graph),
            grain=max((grain(self.variant, info) for info in infos.values()), default=1),
        )  # fmt: skip

    def compile(self, graph: Graph, weights: WeightSource, options: CompileOptions) -> Program:
        infos = weight_infos(graph, weights.tensors)
        plan = self._lower(graph, infos, options)
        threads = threads_of(options)
        packed = PackedWeights(self.variant, infos, file_names(graph))
        weights.deliver(packed.grains, packed.take, max(threads))
        for rope in plan.ropes:
            if rope.factors is not None:
                check_rope_factors(rope.factors, packed.arrays[rope.factors])
        return CpuProgram(self.variant, plan, packed, options, threads)

    def _lower(
        self, graph: Graph, infos: Mapping[str, TensorInfo], options: CompileOptions,
        elsewhere: Collection[str] = (),
    ) -> Lowering:  # fmt: skip
        """The plan; prompt rows of the matrices ``elsewhere`` are computed by the caller."""
        refuse_unknown(graph)
        matrices = {name: info for name, info in infos.items() if len(info.shape) > 1}
        for name, info in matrices.items():
            if not self.variant.supports(info.format.ggml_id):
                raise UnsupportedFormat(
                    f"tensor '{name}' has format {info.format.name}, for which cpu has no kernel"
                )
        formats = {name: info.format.ggml_id for name, info in matrices.items()}
        prompt = self._prompt(options)
        kv_bytes = functools.partial(self.variant.kv_bytes, _KV[options.kv])
        return Lowering(
            graph,
            formats,
            self.variant.activation_kind,
            kv_bytes,
            options.max_batch_tokens,
            prompt,
            elsewhere,
        )

    def _prompt(self, options: CompileOptions) -> str:
        """The arithmetic of prompt tokens: 'int8', 'f32' or 'bf16' (rules R3 and R5)."""
        if options.prefill == "bf16" and not self.variant.has_tiles:
            raise BackendUnavailable(
                "bf16 prefill needs a processor with AMX, and permission to use it", found=self.variant.name,
                hint="Unset RASE_PREFILL, or use int8 or f32; unset RASE_ISA if it names another variant.",
            )  # fmt: skip
        if options.prefill != "auto":
            return options.prefill
        return "bf16" if self.variant.has_tiles and options.numerics == "fast" else "int8"


class CpuProgram(Program):
    """Packed weights, KV pages and scratch of one model; ``run`` holds no GIL while it computes."""

    def __init__(
        self,
        variant: Any,
        plan: Lowering,
        weights: PackedWeights,
        options: CompileOptions,
        threads: tuple[int, int],
    ) -> None:
        from rase._kernels.batch import view_of
        from rase._kernels.exclusive import Exclusive, InUse

        self.graph, self.page_bytes, self.one_arithmetic = plan.graph, plan.page_bytes, plan.prompt == "int8"
        self.reserved_pages = (0,) * len(plan.page_bytes)
        self.states = States.of(plan.graph, self.page_tokens)
        self.max_batch_tokens = options.max_batch_tokens
        self.numerics_class = f"cpu-{REVISION}/{plan.prompt}/kv-{options.kv}"
        self._variant, self.isa = variant, variant.name
        self.page_layout = variant.name  # K and V are interleaved by the width of its vectors
        self.threads = threads
        out_dim, has_logits = self.graph.output.dim, any(isinstance(op, ops.Logits) for op in self.graph.ops)
        self._rows = RowMemory(out_dim, out_dim // 256 if has_logits else 0)
        self._rules = decode_rules(self)
        self._view: BatchView | None = None  # of the last batch: most often the next one has the same arrays
        self._addresses: list[list[int]] = [[] for _ in plan.page_bytes]
        self._keep: list[Any] = []  # memory of pages
        self._weights: Any = weights
        self._kv = options.kv
        self._follow(plan)
        self._exclusive, self._in_use, self._view_of = Exclusive(), InUse, view_of
        self._forks = _fork.forks

    def _follow(self, plan: Lowering) -> None:
        """Walk the steps of ``plan`` from now on, over the weights and pages that there are."""
        from rase._kernels.program import Walker

        pages = -(-self.graph.context_length // PAGE_TOKENS) + 1
        threads, kv, arrays = max(self.threads), _KV[self._kv], self._weights.arrays
        self._walker: Any = Walker(self._variant, self.max_batch_tokens, threads, pages, kv)
        self._scratch: Any = Arena(plan.scratch_bytes, "scratch memory")
        plan.emit(self._walker, self._scratch, arrays)
        self._walker.finish()
        for group, addresses in enumerate(self._addresses):
            if addresses:
                self._walker.set_pages(group, addresses)
        self._ropes = [_RopeTable(rope, arrays) for rope in plan.ropes]

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        for one in range(len(self.page_bytes)) if group is None else (group,):
            reserved = list(self.reserved_pages)
            more, size = n - reserved[one], self.page_bytes[one]
            if more > 0:
                slab = Arena(more * size, f"the KV cache ({more * PAGE_TOKENS} more tokens)")
                self._keep.append(slab)
                if slab.nbytes >= _POPULATE_FROM:
                    slab.populate()
                self._addresses[one] += [slab.address + i * size for i in range(more)]
                self._walker.set_pages(one, self._addresses[one])
                reserved[one] = n
                self.reserved_pages = tuple(reserved)
                if self.states is not None:
                    self.states.reserve(self.reserved_pages)

    def copy_page(self, group: int, source: int, target: int) -> None:
        places = self._addresses[group]
        ctypes.memmove(places[target], places[source], self.page_bytes[group])
        if self.states is not None:
            self.states.copy(group, source, target)

    def save_page(self, group: int, page: int) -> bytes:
        return ctypes.string_at(self._addresses[group][page], self.page_bytes[group])

    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        if len(data) != self.page_bytes[group]:
            raise ValueError(f"{len(data)} bytes for a page of {self.page_bytes[group]}")
        ctypes.memmove(self._addresses[group][page], data, len(data))
        if self.states is not None:
            self.states.put(group, page, tokens)

    def run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        if _fork.forks != self._forks:
            raise BackendError(
                "this model was loaded before a fork and cannot run in the child process",
                hint="Load the model in the child, or start children with the 'spawn' method.",
            )
        try:
            return self._exclusive.call(self._checked, batch)
        except self._in_use:
            raise BackendError(
                "this program is already running a batch", hint="Use one thread at a time per session."
            ) from None

    def _checked(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        if self._walker is None:
            raise BackendError("this program is closed", hint="Load the model again.")
        try:
            view = self._view = self._view_of(batch, self._view)
        except ValueError:
            batch.check(self)  # which says more
            raise
        if self.states is None:
            if not self._rules.accept(view, self.reserved_pages):
                batch.check(self)
            return self._here(batch, view)
        batch.check(self)
        with self.states.running(batch):
            return self._here(batch, view)

    def _here(self, batch: Batch, view: BatchView) -> np.ndarray[Any, np.dtype[np.float32]]:
        return _fork.call(self._run, batch, view) if self._forks else self._run(batch, view)

    def _run(self, batch: Batch, view: BatchView) -> np.ndarray[Any, np.dtype[np.float32]]:
        generated, last, out = view.generated, view.last_position, self._rows.take(view.outputs)
        for index, table in enumerate(self._ropes):
            if last >= table.length:
                table.cover(last, self.graph.context_length, self._walker, index)
        threads = self.threads[0 if generated == view.tokens else 1]
        timed = profiling.enabled()
        start = _now() if timed else 0
        spent = self._walk(batch, generated, (view, generated, out, threads, timed))
        if timed:
            _count(view.tokens - generated, _now() - start, spent)
        return out.rows

    def peaks_of(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        last = self._rows.last
        return last.peaks if last is not None and rows is last.rows and last.peaks.size else None

    def each_of(self, rows: np.ndarray[Any, Any]) -> list[Row]:
        last = self._rows.last
        return last.each() if last is not None and rows is last.rows else super().each_of(rows)

    def _walk(self, batch: Batch, generated: int, arguments: tuple[Any, ...]) -> Any:
        """All phases of the walker; what it says of the time spent."""
        return self._walker.run(*arguments)

    def limits(self, buffer_bytes: int = 2 << 30) -> Limits | None:
        from rase.backends._limits import measure_limits

        return measure_limits(self._variant, self.threads, self.numerics_class.split("/")[1], buffer_bytes)

    def close(self) -> None:
        from rase._kernels.exclusive import InUse

        while True:  # a batch that is running ends first: it reads the memory that goes
            try:
                return self._exclusive.call(self._free)
            except InUse:
                time.sleep(0.001)

    def _free(self) -> None:
        self._walker = self._scratch = self._weights = None
        self._keep, self._ropes, self._addresses = [], [], []


class _RopeTable:
    """cos and sin by position, float32 from float64 angles: fixed by the graph, made as positions come."""

    def __init__(self, rope: ops.Rope, weights: Mapping[str, Any]) -> None:
        from rase._kernels.mathfn import inv_freq, yarn

        self.rope, self.attn_factor = rope, rope.attn_factor
        self.frequencies = np.empty(rope.n_dims // 2)
        factors = None if rope.factors is None else weights[rope.factors]
        inv_freq(rope.theta, rope.n_dims, self.frequencies, factors)
        if (way := rope.yarn) is not None:
            self.attn_factor *= yarn(self.frequencies, rope.theta, way.factor, way.original_context,
                                     way.beta_fast, way.beta_slow)  # fmt: skip
        self.cos = self.sin = np.empty((0, rope.n_dims // 2), np.float32)
        self.length = 0  # positions

    def cover(self, position: int, context_length: int, walker: Any, index: int) -> None:
        """Make the table hold ``position``, which is beyond its end, and tell the walker where it is."""
        from rase._kernels.mathfn import rope_table

        have = self.length
        steps = max(2 * have, -(-(position + 1) // _ROPE_STEP) * _ROPE_STEP)
        want = min(steps, max(context_length, position + 1))
        cos, sin = (np.empty((want - have, self.rope.n_dims // 2), np.float32) for _ in range(2))
        rope_table(have, want, self.frequencies, cos, sin, self.rope.scale, self.attn_factor)
        cos, sin = np.concatenate([self.cos, cos]), np.concatenate([self.sin, sin])
        walker.set_rope(index, cos, sin)  # first: an interrupt in between costs the work, nothing else
        self.cos, self.sin, self.length = cos, sin, want


def threads_of(options: CompileOptions) -> tuple[int, int]:
    """Workers for a step of generated tokens only, and for one with prompt tokens."""
    return (options.threads, options.threads) if options.threads else (decode_threads(), prefill_threads())


def _now() -> int:
    return time.perf_counter_ns()


def _count(prompt_tokens: int, elapsed: int, spent: tuple[int, int, int]) -> None:
    """Fill the profiling counters: wall time of worker 0 between meetings, split by role."""
    unpack, linear, attention = spent
    if prompt_tokens:
        amounts = {
            "prefill_calls": 1,
            "prefill_tokens": prompt_tokens,
            "prefill_forward_ns": elapsed,
            "gemm_dequant_ns": unpack,
            "gemm_matmul_ns": linear - unpack,
            "attn_blocked_ns": attention,
        }
    else:
        amounts = {
            "decode_steps": 1,
            "decode_forward_ns": elapsed,
            "decode_matvec_ns": linear,
            "decode_attn_ns": attention,
        }
    for name, amount in amounts.items():
        profiling.add(name, amount)


BACKEND = CpuBackend
