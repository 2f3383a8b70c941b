"""The oracle: every op in NumPy float64 on dequantized weights, one plain function per op.

Other backends are checked against it, so it is slow and obvious: no fusion, no blocking, one token at a time
in attention. ``kv_dtype="float16"`` rounds K and V through float32 to float16, as a float16 cache stores
them; ``"float64"`` does not round; the option ``kv="q8_0"`` rounds them as that cache does. Options that
choose arithmetic or threads have no effect here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np

from rase.backends._reference_states import OPS as STATE_OPS
from rase.backends._stacks import file_names, weight_infos
from rase.backends._states import States
from rase.backends.base import (
    PAGE_TOKENS,
    Backend,
    Batch,
    CompileOptions,
    MemoryEstimate,
    Program,
    WeightSource,
    most_pages,
)
from rase.backends.check import check_rope_factors
from rase.errors import BackendError, InvalidSetting, UnsupportedArchitecture
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import TensorInfo
from rase.graph import ops
from rase.graph.ops import Graph, Op

__all__ = ["BACKEND", "ReferenceBackend", "ReferenceProgram"]

Array = Any  # np.ndarray of float64


class ReferenceBackend(Backend):
    """NumPy float64; always available."""

    name = "reference"

    def __init__(self, kv_dtype: Literal["float16", "float64"] = "float64") -> None:
        if kv_dtype not in ("float16", "float64"):
            raise InvalidSetting("kv_dtype", expected="'float16' or 'float64'", found=repr(kv_dtype))
        self.kv_dtype = kv_dtype

    def available(self) -> tuple[bool, str]:
        return True, f"NumPy {np.__version__}, float64"

    def estimate(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> MemoryEstimate:
        _refuse_unknown_ops(graph)
        elements = sum(math.prod(weight.shape) for weight in graph.weights.values())
        widest = max(value.dim for value in graph.values if value.rows == "tokens")
        largest = max(math.prod(weight.shape) for weight in graph.weights.values())
        row = 16 * widest + graph.vocab_size  # a token's values in use at one time, and its logits
        scratch = 8 * (row * options.max_batch_tokens + largest)  # with one weight as float64
        grain = max(tensors[name].nbytes for name in file_names(graph))
        return MemoryEstimate(
            weights=4 * elements,
            pages=_page_bytes(graph),
            scratch=scratch,
            grain=grain,
            most=most_pages(graph),
        )

    def compile(self, graph: Graph, weights: WeightSource, options: CompileOptions) -> Program:
        _refuse_unknown_ops(graph)
        loaded: dict[str, Any] = {}
        weight_infos(graph, weights.tensors)

        def take(info: TensorInfo, _: int, data: memoryview) -> None:
            loaded[info.name] = dequantize(info.format, data, info.shape)

        weights.deliver({name: weights.tensors[name].nbytes for name in file_names(graph)}, take)
        for name, weight in graph.weights.items():
            if weight.parts:
                loaded[name] = np.stack([loaded.pop(part) for part in weight.parts])
        for op in graph.ops:
            if isinstance(op, ops.Rotate) and op.rope.factors is not None:
                check_rope_factors(op.rope.factors, loaded[op.rope.factors])
        kv = self.kv_dtype if options.kv == "f16" else options.kv
        return ReferenceProgram(graph, loaded, kv, options.max_batch_tokens)


class ReferenceProgram(Program):
    """Weights as float32, which holds every dequantized value exactly; all arithmetic is float64."""

    def __init__(self, graph: Graph, weights: dict[str, Any], kv_dtype: str, max_batch_tokens: int) -> None:
        self.graph, self.max_batch_tokens, self.kv_dtype = graph, max_batch_tokens, kv_dtype
        self.numerics_class = f"reference-1/float64/kv-{kv_dtype}"
        self.page_bytes, self.one_arithmetic = _page_bytes(graph), True
        self.reserved_pages = (0,) * len(graph.caches)
        self._weights = weights
        self._stores = [_storage(group, 0) for group in graph.caches]
        self.states = States.of(graph, self.page_tokens)
        self._last_use = {value.id: index for index, op in enumerate(graph.ops) for value in op.inputs}
        self._lock, self._closed = threading.Lock(), False

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        reserved = list(self.reserved_pages)
        for cache in range(len(reserved)) if group is None else (group,):
            more = n - reserved[cache]
            if more > 0:
                added = _storage(self.graph.caches[cache], more)
                self._stores[cache] = np.concatenate([self._stores[cache], added], axis=2)
                reserved[cache] = n
        self.reserved_pages = tuple(reserved)
        if self.states is not None:
            self.states.reserve(self.reserved_pages)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self._stores[group][:, :, target] = self._stores[group][:, :, source]
        if self.states is not None:
            self.states.copy(group, source, target)

    def save_page(self, group: int, page: int) -> bytes:
        return bytes(self._stores[group][:, :, page].tobytes())

    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        if len(data) != self.page_bytes[group]:
            raise ValueError(f"{len(data)} bytes for a page of {self.page_bytes[group]}")
        place = self._stores[group][:, :, page]
        place[:] = np.frombuffer(data, place.dtype).reshape(place.shape)
        if self.states is not None:
            self.states.put(group, page, tokens)

    def run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        with self._lock:
            if self._closed:
                raise BackendError("this program is closed", hint="Load the model again.")
            batch.check(self)
            with nullcontext() if self.states is None else self.states.running(batch):
                return self._run(batch)

    def _run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        values: dict[int, Array] = {}
        # exp(-x) of a large negative x is infinity, and 1/infinity is right; the sampler refuses NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            for index, op in enumerate(self.graph.ops):
                values[op.out.id] = _OPS[type(op)](op, [values[value.id] for value in op.inputs], self, batch)
                for value in op.inputs:
                    if self._last_use[value.id] == index:
                        values.pop(value.id, None)
        return np.asarray(values[self.graph.output.id], np.float32)

    def close(self) -> None:
        with self._lock:  # a batch that is running ends first
            self._closed = True
            self._weights, self._stores = {}, []

    def weight(self, name: str) -> Array:
        """One tensor as float64."""
        return np.asarray(self._weights[name], np.float64)

    def store(self, op: ops.Attention, batch: Batch, k: Array, v: Array) -> None:
        """Write K and V of the batch's tokens, each (tokens, n_kv_heads, head_dim), into their pages."""
        keys, values = self._stores[op.cache][:, op.layer]
        k, v = (_ROUNDINGS[self.kv_dtype](x) for x in (k, v))
        for t, position in enumerate(batch.positions[0]):
            page = batch.page_tables[op.cache, batch.sequences[t], position // self.page_tokens]
            keys[page, position % self.page_tokens] = k[t]
            values[page, position % self.page_tokens] = v[t]

    def cached(self, op: ops.Attention, table: Any, first: int, last: int) -> tuple[Array, Array]:
        """K and V of the positions first to last, each (positions, n_kv_heads, head_dim)."""
        positions = np.arange(first, last + 1)
        page, slot = table[positions // self.page_tokens], positions % self.page_tokens
        keys, values = self._stores[op.cache][:, op.layer]
        return keys[page, slot], values[page, slot]

    def state(self, op: ops.CausalConv | ops.DeltaRule, table: Any, position: int) -> Array:
        """The state (n_kv_heads, head_dim) after ``position``; zeros after position -1."""
        group = self.graph.caches[op.cache]
        if position < 0:
            return np.zeros((group.n_kv_heads, group.head_dim))
        return self._stores[op.cache][0, op.layer, table[position // self.page_tokens]]

    def keep_state(self, op: ops.CausalConv | ops.DeltaRule, table: Any, position: int, state: Array) -> None:
        """Write the state after ``position`` to its page, if it has one."""
        page = table[position // self.page_tokens]
        if page >= 0:
            self._stores[op.cache][0, op.layer, page] = state


def _float16(x: Array) -> Array:
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def _q8_0(x: Array) -> Array:
    """Blocks of 32 along the last axis (the last may be shorter): integers up to 127 times one float16."""
    blocks = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32) * 32), np.float32)
    blocks[..., : x.shape[-1]] = x
    split = blocks.reshape(*x.shape[:-1], -1, 32)
    amax = np.abs(split).max(-1, keepdims=True)
    whole = np.where(amax < np.float32(1e-33), np.float32(np.inf), amax)  # a block of zeros
    codes = np.rint(split * (np.float32(127) / whole))
    scales = (amax / np.float32(127)).astype(np.float16)
    return (codes * scales.astype(np.float64)).reshape(blocks.shape)[..., : x.shape[-1]]


_ROUNDINGS: dict[str, Callable[[Array], Array]] = {"float64": np.asarray, "float16": _float16, "q8_0": _q8_0}


def _storage(group: ops.CacheGroup, pages: int) -> Array:
    """K and V of one cache group: (2, layers, pages, page_tokens, n_kv_heads, head_dim); of a state group
    (1, layers, pages, n_kv_heads, head_dim)."""
    if group.kind == "state":
        return np.zeros((1, group.n_layers, pages, group.n_kv_heads, group.head_dim))
    return np.zeros((2, group.n_layers, pages, PAGE_TOKENS, group.n_kv_heads, group.head_dim))


def _page_bytes(graph: Graph) -> tuple[int, ...]:
    """Bytes of one page of each cache group, float64."""
    return tuple(_storage(group, 1).nbytes for group in graph.caches)


def _refuse_unknown_ops(graph: Graph) -> None:
    for op in graph.ops:
        if type(op) not in _OPS:
            raise UnsupportedArchitecture(
                f"the reference backend does not run op {type(op).__name__} of '{graph.architecture}'"
            )


# One function per op: (op, its input values, the program, the batch) -> the output value, float64 (rows, dim)


def _embed(op: ops.Embed, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    rows = {"ids": batch.ids, "positions": batch.positions[0], "first": np.zeros_like(batch.ids)}
    return program.weight(op.weight.name)[rows[op.index]] * op.scale


def _rms_norm(op: ops.RmsNorm, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    groups = x[0].reshape(len(x[0]), -1, op.group)  # (tokens, runs, group)
    mean_square = np.mean(groups**2, axis=-1, keepdims=True)
    return (groups / np.sqrt(mean_square + op.eps) * program.weight(op.weight.name)).reshape(x[0].shape)


def _layer_norm(op: ops.LayerNorm, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    centred = x[0] - np.mean(x[0], axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    normed = centred / np.sqrt(variance + op.eps)
    return normed * program.weight(op.weight.name) + program.weight(op.bias.name)


def _linear(op: ops.Linear, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    out = x[0] @ program.weight(op.weight.name).T
    return out if op.bias is None else out + program.weight(op.bias.name)


def _route(op: ops.Route, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    logits = x[0] @ program.weight(op.weight.name).T
    chosen = np.sort(
        np.argsort(-logits, axis=1, kind="stable")[:, : op.k], axis=1
    )  # stable: ties to the lowest
    gates = np.exp(logits - logits.max(1, keepdims=True))
    total = gates.sum(1, keepdims=True)
    gates = np.take_along_axis(gates, chosen, 1)
    if op.renormalize:
        total = gates.sum(1, keepdims=True)
    return np.concatenate([chosen, gates / total * op.scale], axis=1)


def _linear_routed(op: ops.LinearRouted, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    experts, k = x[1][:, : x[1].shape[1] // 2].astype(int), x[1].shape[1] // 2
    weight = program.weight(op.weight.name)
    rows = x[0] if op.x.rows == "routed" else np.repeat(x[0], k, axis=0)  # (tokens · k, dim)
    return np.array([weight[expert] @ row for expert, row in zip(experts.reshape(-1), rows, strict=True)])


def _mix(op: ops.Mix, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    k = x[1].shape[1] // 2
    return (x[0].reshape(len(x[1]), k, -1) * x[1][:, k:, None]).sum(1)


def _rotate(op: ops.Rotate, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    rope, half = op.rope, op.rope.n_dims // 2
    factor = np.ones(half) if rope.factors is None else program.weight(rope.factors)
    pair = np.arange(half)
    frequency, size = rope.theta ** (-2 * pair / rope.n_dims), rope.attn_factor
    if rope.yarn is not None:
        frequency = frequency * _yarn_mix(rope, rope.yarn)
        size *= 1 + 0.1 * math.log(rope.yarn.factor)
    angle = (batch.positions[0][:, None, None] / rope.scale) * (frequency / factor)  # (tokens, 1, pairs)
    cos, sin = np.cos(angle) * size, np.sin(angle) * size
    first, second = (2 * pair, 2 * pair + 1) if rope.pairing == "neighbour" else (pair, pair + half)
    heads = x[0].reshape(len(x[0]), -1, op.head_dim)
    out = heads.copy()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., first] * sin + heads[..., second] * cos
    return out.reshape(x[0].shape)


def _yarn_mix(rope: ops.Rope, yarn: ops.Yarn) -> Array:
    """What each pair's frequency is multiplied by: from 1 (fast pairs) to 1 / factor (slow ones)."""

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that turns so often within the original context."""
        around = yarn.original_context / (2 * math.pi * turns)
        return rope.n_dims * math.log(around) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_of(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_of(yarn.beta_slow)), rope.n_dims - 1)
    slow = np.clip((np.arange(rope.n_dims // 2) - low) / max(high - low, 0.001), 0, 1)
    return slow / yarn.factor + (1 - slow)


def _activate(op: ops.Activate, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    a = x[0]
    if op.kind == "silu":
        return a / (1 + np.exp(-a))
    if op.kind == "sigmoid":
        return 1 / (1 + np.exp(-a))
    if op.kind == "gelu":
        return 0.5 * a * (1 + np.vectorize(math.erf, otypes=[float])(a / math.sqrt(2)))
    return 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


def _mul(op: ops.Mul, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    return x[0] * x[1]


def _add(op: ops.Add, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    return x[0] + x[1]


def _scale(op: ops.Scale, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    return x[0] * op.factor


def _slice(op: ops.Slice, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    periods = x[0].reshape(len(x[0]), -1, op.period)
    return periods[..., op.start : op.start + op.size].reshape(len(x[0]), -1)


def _attention(op: ops.Attention, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    q = x[0].reshape(-1, op.n_heads, op.head_dim)
    k, v = (a.reshape(-1, op.n_kv_heads, op.head_dim) for a in x[1:])
    program.store(op, batch, k, v)
    sinks = None if op.sinks is None else program.weight(op.sinks.name)
    out = np.empty_like(q)
    for t, position in enumerate(batch.positions[0]):
        first, last = 0, position
        if isinstance(op.mask, ops.Window):
            first = max(0, position - op.mask.width + 1)
        elif isinstance(op.mask, ops.Bidirectional):
            last = batch.positions[0][batch.sequences == batch.sequences[t]].max()
        keys, values = program.cached(op, batch.page_tables[op.cache, batch.sequences[t]], first, last)
        for head in range(op.n_heads):
            shared = head // (op.n_heads // op.n_kv_heads)
            scores = op.scale * (keys[:, shared] @ q[t, head])
            if op.soft_cap is not None:
                scores = op.soft_cap * np.tanh(scores / op.soft_cap)
            top = scores.max() if sinks is None else max(scores.max(), sinks[head])
            weights = np.exp(scores - top)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[head] - top))
            out[t, head] = weights @ values[:, shared] / total
    return out.reshape(len(q), -1)


def _logits(op: ops.Logits, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    logits = x[0][batch.logits_rows] @ program.weight(op.weight.name).T * op.scale
    return logits if op.soft_cap is None else op.soft_cap * np.tanh(logits / op.soft_cap)


def _hidden(op: ops.Hidden, x: list[Array], program: ReferenceProgram, batch: Batch) -> Array:
    return x[0][batch.logits_rows]


_OPS: dict[type[Op], Callable[[Any, list[Array], ReferenceProgram, Batch], Array]] = {
    ops.Embed: _embed, ops.RmsNorm: _rms_norm, ops.LayerNorm: _layer_norm, ops.Linear: _linear,
    ops.Rotate: _rotate,
    ops.Activate: _activate, ops.Mul: _mul, ops.Add: _add, ops.Scale: _scale, ops.Slice: _slice,
    ops.Attention: _attention, ops.Logits: _logits, ops.Hidden: _hidden,
    ops.Route: _route, ops.LinearRouted: _linear_routed, ops.Mix: _mix, **STATE_OPS,
}  # fmt: skip

BACKEND = ReferenceBackend
