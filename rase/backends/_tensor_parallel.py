"""Divides a graph among the processes of a tensor-parallel group, by the names of its weights' axes.

Heads, K/V heads, hidden elements and the vocabulary are divided; everything else is computed by all (Shoeybi
et al., Megatron-LM, arXiv 1909.08053). A matrix whose input is divided gives a part of a sum, which the
processes add up. What cannot be divided is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rase.errors import UnsupportedArchitecture, UnsupportedFormat
from rase.graph import ops
from rase.graph.ops import Graph, Op, Value, Weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rase.gguf.formats import TensorInfo

__all__ = ["AllGather", "AllReduce", "Share", "cut", "divide", "shared_infos"]

_DIVIDED = frozenset({"heads", "kv_heads", "hidden", "n_heads"})


@dataclass(frozen=True)
class AllReduce(Op):
    """out = the sum of x over all processes."""

    x: Value


@dataclass(frozen=True)
class AllGather(Op):
    """out = the columns of x of all processes, in order of rank."""

    x: Value


@dataclass(frozen=True)
class Share:
    """One process's part: its graph, and the axis along which each weight is cut (absent: not at all)."""

    graph: Graph
    cuts: dict[str, int]


def divide(graph: Graph, rank: int, world: int) -> Share:
    """The part of process ``rank`` of ``world``. Raises ``UnsupportedArchitecture``."""
    return _Division(graph, rank, world).run()


def cut(info: TensorInfo, axis: int | None, rank: int, world: int) -> tuple[TensorInfo, Any]:
    """What process ``rank`` has of the tensor ``info``: its own info, and how to take it from the bytes.

    The second value is a function of a uint8 array of all bytes. Raises ``UnsupportedFormat`` where a cut
    would go through a block.
    """
    if axis is None:
        return info, lambda data: data
    axis, shape = axis % len(info.shape), list(info.shape)
    if shape[axis] % world:
        raise UnsupportedArchitecture(f"tensor '{info.name}' cannot be divided among {world} processes",
                                      found=f"{shape[axis]} rows")  # fmt: skip
    shape[axis] //= world
    row, last = info.format.row_bytes(info.shape[-1]), len(shape) - 1
    if axis == last and shape[axis] % info.format.block_size:
        raise UnsupportedFormat(
            f"tensor '{info.name}' of format {info.format.name} cannot be divided among {world} processes",
            expected=f"rows of whole blocks of {info.format.block_size}", found=f"{shape[axis]} weights each",
            hint="Use fewer processes, or a file in a format with smaller blocks.",
        )  # fmt: skip
    sizes = (*info.shape[:-1], row)
    part = sizes[axis] // world

    def take(data: Any) -> Any:
        whole = data.reshape(sizes)
        index = (slice(None),) * axis + (slice(rank * part, (rank + 1) * part),)
        return whole[index]

    return replace(info, shape=tuple(shape), nbytes=info.nbytes // world), take


def shared_infos(share: Share, infos: Mapping[str, TensorInfo], world: int) -> dict[str, TensorInfo]:
    """What one process holds of each weight."""
    return {name: cut(info, share.cuts.get(name), 0, world)[0] for name, info in infos.items()}


class _Division:
    def __init__(self, graph: Graph, rank: int, world: int) -> None:
        self.graph, self.rank, self.world = graph, rank, world
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.cuts: dict[str, int] = {}
        self.new: dict[int, Value] = {}
        self.split: set[int] = set()  # ids of the original values that are divided
        self.caches = list(graph.caches)
        self.embedded = {op.weight.name for op in graph.ops if isinstance(op, ops.Embed)}

    def run(self) -> Share:
        for op in self.graph.ops:
            method = getattr(self, "_" + type(op).__name__.lower(), self._elementwise)
            method(op)
        matrices = [op.weight.name for op in self.graph.ops if isinstance(op, (ops.Linear, ops.LinearRouted))]
        if matrices and not self.cuts.keys() & set(matrices):  # fused matrices only, as in Phi-3
            raise UnsupportedArchitecture(
                f"no matrix of '{self.graph.architecture}' can be divided among {self.world} processes",
                hint="Set RASE_TENSOR_PARALLEL_SIZE=1.",
            )
        outputs = {name: self.new[value.id] for name, value in self.graph.outputs.items()}
        weights = {name: self._weight(weight) for name, weight in self.graph.weights.items()}
        graph = replace(self.graph, ops=tuple(self.ops), values=tuple(self.values), caches=tuple(self.caches),
                        outputs=outputs, weights=weights)  # fmt: skip
        return Share(graph, self.cuts)

    def _emit(self, op: Op, divided: bool, **changes: Any) -> Value:
        """Add ``op`` over the new values; its result stands for the old one."""
        dim = op.out.dim
        if divided:
            if dim % self.world:
                self._refuse(op, f"{dim} elements")
            dim //= self.world
            self.split.add(op.out.id)
        out = self._value(replace(op.out, dim=dim))
        fields = {name: self.new[value.id] for name, value in vars(op).items()
                  if isinstance(value, Value) and name != "out"}  # fmt: skip
        weights = {name: self._weight(value) for name, value in vars(op).items() if isinstance(value, Weight)}
        self.ops.append(replace(op, out=out, **fields, **weights, **changes))
        self.new[op.out.id] = out
        return out

    def _value(self, like: Value) -> Value:
        self.values.append(replace(like, id=len(self.values)))
        return self.values[-1]

    def _weight(self, weight: Weight) -> Weight:
        axis = self.cuts.get(weight.name)
        if axis is None:
            return weight
        shape = list(weight.shape)
        shape[axis] //= self.world
        return replace(weight, shape=tuple(shape))

    def _sum(self, op: Op) -> None:
        """What ``op`` gave is a part of a sum."""
        part = self.new[op.out.id]
        out = self._value(part)
        self.ops.append(AllReduce(out, part))
        self.new[op.out.id] = out

    def _refuse(self, op: Op, found: str) -> None:
        raise UnsupportedArchitecture(
            f"{type(op).__name__} of '{self.graph.architecture}' cannot be divided among {self.world}",
            found=found, hint="Set RASE_TENSOR_PARALLEL_SIZE=1, or another number.",
        )  # fmt: skip

    # One method per op that is not elementwise

    def _elementwise(self, op: Op) -> None:
        divided = {value.id in self.split for value in op.inputs}
        if len(divided) > 1:
            self._refuse(op, "one operand divided, another not")
        self._emit(op, divided == {True})

    def _embed(self, op: ops.Embed) -> None:
        self._emit(op, False)

    def _rmsnorm(self, op: Any) -> None:
        divided = op.x.id in self.split
        if divided and op.group * self.world > op.x.dim:
            self._refuse(op, f"a norm over {op.group} of {op.x.dim} elements")
        self._emit(op, divided)

    _l2norm = _rmsnorm

    def _layernorm(self, op: ops.LayerNorm) -> None:
        if op.x.id in self.split:
            self._refuse(op, "a norm over all elements")
        self._emit(op, False)

    def _slice(self, op: ops.Slice) -> None:
        divided = op.x.id in self.split
        if divided and op.period * self.world > op.x.dim:
            self._refuse(op, "parts of one matrix")
        self._emit(op, divided)

    def _rotate(self, op: ops.Rotate) -> None:
        self._emit(op, op.x.id in self.split)

    def _linear(self, op: Any) -> None:
        """Of a stack of experts, too: its last two axes are those of the matrices."""
        rows, cols = op.weight.axes[-2:]
        last = len(op.weight.shape) - 1
        bias = getattr(op, "bias", None)
        if op.x.id in self.split:
            if cols not in _DIVIDED:
                self._refuse(op, f"a divided operand of '{op.weight.name}', whose axes are {op.weight.axes}")
            self.cuts[op.weight.name] = last
            self._emit(op if bias is None or self.rank == 0 else replace(op, bias=None), False)  # added once
            self._sum(op)
            return
        if rows in _DIVIDED:
            self.cuts[op.weight.name] = last - 1
            if bias is not None:
                self.cuts[bias.name] = 0
        self._emit(op, rows in _DIVIDED)

    def _linearrouted(self, op: ops.LinearRouted) -> None:
        self._linear(op)

    def _route(self, op: ops.Route) -> None:
        self._emit(op, False)

    def _mix(self, op: ops.Mix) -> None:
        self._emit(op, op.x.id in self.split)

    def _attention(self, op: ops.Attention) -> None:
        divided = {value.id in self.split for value in op.inputs}
        if len(divided) > 1:
            self._refuse(op, "queries divided, keys not")
        if divided == {False}:
            self._emit(op, False)
            return
        for what, heads in (("query", op.n_heads), ("K/V", op.n_kv_heads)):
            if heads % self.world:
                self._refuse(op, f"{heads} {what} heads")
        if op.sinks is not None:
            self.cuts[op.sinks.name] = 0
        local = self.graph.caches[op.cache].n_kv_heads // self.world
        self.caches[op.cache] = replace(self.caches[op.cache], n_kv_heads=local)
        self._emit(op, True, n_heads=op.n_heads // self.world, n_kv_heads=op.n_kv_heads // self.world)

    def _state(self, op: Op) -> None:
        self._refuse(op, "a recurrent state")

    _causalconv = _deltarule = _decay = _state

    def _logits(self, op: ops.Logits) -> None:
        rows = op.weight.shape[0]
        if rows % self.world or op.weight.name in self.embedded:  # an embedding is looked up by all
            self._emit(op, False)
            return
        self.cuts[op.weight.name] = 0
        part = self._emit(op, True)
        out = self._value(replace(part, dim=op.out.dim))
        self.ops.append(AllGather(out, part))
        self.new[op.out.id] = out
