"""``TorchProgram``: weights, pages and states of one model on a torch device, and the walk over its ops."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rase.backends._states import States
from rase.backends._torch_graphs import DecodeGraphs
from rase.backends._torch_ops import OPS
from rase.backends._torch_step import Step
from rase.backends.base import PAGE_TOKENS, Batch, Program
from rase.errors import BackendError, InsufficientMemory

if TYPE_CHECKING:
    from rase.backends._torch_formats import Matrix
    from rase.graph.ops import CacheGroup, Graph, Rope

__all__ = ["REVISION", "TorchProgram", "page_bytes"]

REVISION = 1  # of the arithmetic
_ROPE_STEP = 1024  # positions by which rotary tables grow

Rows = np.ndarray[Any, np.dtype[np.float32]]


def page_bytes(group: CacheGroup) -> int:
    """Bytes of one page: K and V of all layers in float16, or their states in float32."""
    if group.kind == "state":
        return 4 * group.n_layers * group.n_kv_heads * group.head_dim
    return 2 * 2 * group.n_layers * PAGE_TOKENS * group.n_kv_heads * group.head_dim


class TorchProgram(Program):
    """``matrices``, ``vectors`` by weight name; ``prompt``, f32 or bf16: how prompt tokens are computed."""

    def __init__(
        self, graph: Graph, matrices: dict[str, Matrix], vectors: dict[str, Any], device: Any, prompt: str,
        weights: str, max_batch_tokens: int,
    ) -> None:  # fmt: skip
        self.graph, self.matrices, self.vectors, self.device = graph, matrices, vectors, device
        self.prompt, self.max_batch_tokens = prompt, max_batch_tokens
        self.numerics_class = f"torch-{REVISION}/{device.type}/{prompt}/weights-{weights}/kv-f16"
        self.one_arithmetic = prompt == "f32"
        self.page_bytes = tuple(page_bytes(group) for group in graph.caches)
        self.reserved_pages = (0,) * len(graph.caches)
        self.states = States.of(graph, self.page_tokens)
        self.stores: list[Any] = [self._storage(group, 0) for group in graph.caches]
        self.group: Any = None  # of processes that share the model
        self._ropes: dict[Rope, tuple[Any, Any]] = {}
        self._last_use = {value.id: index for index, op in enumerate(graph.ops) for value in op.inputs}
        self._graphs = DecodeGraphs(self) if DecodeGraphs.serve(graph, device) else None
        self._lock, self._closed, self._pid = threading.Lock(), False, os.getpid()

    def _storage(self, group: CacheGroup, pages: int) -> Any:
        """One page more than ``pages``: a place for what nobody reads."""
        if group.kind == "state":
            shape: tuple[int, ...] = (1, group.n_layers, pages + 1, group.n_kv_heads, group.head_dim)
            return torch.zeros(shape, dtype=torch.float32, device=self.device)
        shape = (2, group.n_layers, pages + 1, PAGE_TOKENS, group.n_kv_heads, group.head_dim)
        return torch.zeros(shape, dtype=torch.float16, device=self.device)

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        reserved = list(self.reserved_pages)
        for cache in range(len(reserved)) if group is None else (group,):
            if n > reserved[cache]:
                try:
                    grown = self._storage(self.graph.caches[cache], n)
                except (torch.OutOfMemoryError, RuntimeError):
                    needed = n * self.page_bytes[cache]
                    raise InsufficientMemory("the KV cache", needed=needed, available=0) from None
                grown[:, :, : reserved[cache]] = self.stores[cache][:, :, : reserved[cache]]
                self.stores[cache], reserved[cache] = grown, n
                if self._graphs is not None:
                    self._graphs.forget()  # they hold the address of the old storage
        self.reserved_pages = tuple(reserved)
        if self.states is not None:
            self.states.reserve(self.reserved_pages)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self.stores[group][:, :, target] = self.stores[group][:, :, source]
        if self.states is not None:
            self.states.copy(group, source, target)

    def save_page(self, group: int, page: int) -> bytes:
        return bytes(self.stores[group][:, :, page].cpu().numpy().tobytes())

    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        if len(data) != self.page_bytes[group]:
            raise ValueError(f"{len(data)} bytes for a page of {self.page_bytes[group]}")
        place = self.stores[group][:, :, page]
        kind = np.float32 if place.dtype == torch.float32 else np.float16
        place.copy_(torch.from_numpy(np.frombuffer(data, kind).reshape(place.shape).copy()))
        if self.states is not None:
            self.states.put(group, page, tokens)

    def run(self, batch: Batch) -> Rows:
        with self.exclusive():
            batch.check(self)
            return self.run_checked(batch)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One batch at a time. Raises ``BackendError`` when the program cannot run."""
        if os.getpid() != self._pid:
            raise BackendError(
                "this model was loaded before a fork and cannot run in the child process",
                hint="Load the model in the child, or start children with the 'spawn' method.",
            )
        with self._lock:
            if self._closed:
                raise BackendError("this program is closed", hint="Load the model again.")
            yield

    def run_checked(self, batch: Batch) -> Rows:
        """What ``run`` gives, for who holds ``exclusive``."""
        with torch.inference_mode(), nullcontext() if self.states is None else self.states.running(batch):
            return self._rows(batch)

    def _rows(self, batch: Batch) -> Rows:
        last = int(batch.positions[0].max())
        for rope, tables in list(self._ropes.items()):
            if last >= len(tables[0]):
                self._ropes[rope] = self._rope_table(rope, last)
        if self._graphs is not None and (rows := self._graphs.run(batch)) is not None:
            return rows
        step = Step(batch, self.graph, self.page_tokens, self.device)
        return np.asarray(self.walk(step).cpu().numpy(), np.float32)

    def walk(self, step: Step) -> Any:
        """What the graph gives for ``step``, on the device."""
        values: dict[int, Any] = {}
        for index, op in enumerate(self.graph.ops):
            values[op.out.id] = OPS[type(op)](op, [values[value.id] for value in op.inputs], self, step)
            for value in op.inputs:
                if self._last_use[value.id] == index:
                    values.pop(value.id, None)
        return values[self.graph.output.id]

    def add_ropes(self, ropes: list[Rope], factors: dict[str, Any]) -> None:
        """Rotary tables for ``ropes``; ``factors`` are those that they name, float32 arrays."""
        self._factors = factors
        self._ropes = {rope: self._rope_table(rope, 0) for rope in ropes}

    def rope(self, rope: Rope) -> tuple[Any, Any]:
        """cos and sin (positions, half) on the device, for every position of the running batch."""
        return self._ropes[rope]

    def _rope_table(self, rope: Rope, last: int) -> tuple[Any, Any]:
        """From float64 angles, as the cpu backend has them. On CUDA the whole context at once: a captured
        graph holds the address."""
        from rase._kernels.mathfn import inv_freq, rope_table, yarn

        whole = self.graph.context_length if self._graphs is not None else 0
        size = max(whole, last + 1, min(2 * last + _ROPE_STEP, self.graph.context_length))
        frequencies, factor = np.empty(rope.n_dims // 2), rope.attn_factor
        inv_freq(rope.theta, rope.n_dims, frequencies,
                 None if rope.factors is None else self._factors[rope.factors])  # fmt: skip
        if (way := rope.yarn) is not None:
            factor *= yarn(frequencies, rope.theta, way.factor, way.original_context, way.beta_fast,
                           way.beta_slow)  # fmt: skip
        cos, sin = (np.empty((size, rope.n_dims // 2), np.float32) for _ in range(2))
        rope_table(0, size, frequencies, cos, sin, rope.scale, factor)
        return torch.from_numpy(cos).to(self.device), torch.from_numpy(sin).to(self.device)

    def close(self) -> None:
        with self._lock:  # a batch that is running ends first
            self._closed = True
            self.matrices, self.vectors, self.stores, self._ropes = {}, {}, [], {}
            if self._graphs is not None:
                self._graphs.forget()
