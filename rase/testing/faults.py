"""Planted faults: any backend with one op computed a little wrong, to see that tests notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rase.backends.base import Backend, CompileOptions, MemoryEstimate, Program, WeightSource
from rase.graph import ops
from rase.graph.ops import Graph, Op, Value

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo

__all__ = ["OFF", "Spoiled", "spoil"]

OFF = 1.05  # what a spoiled op's results are multiplied by


class Spoiled(Backend):
    """``inner``, in whose programs every op of type ``kind`` is off by five per cent."""

    def __init__(self, inner: Backend, kind: type[Op]) -> None:
        self.inner, self.kind, self.name = inner, kind, inner.name

    def available(self) -> tuple[bool, str]:
        return self.inner.available()

    def estimate(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> MemoryEstimate:
        return self.inner.estimate(spoil(graph, self.kind), tensors, options)

    def compile(self, graph: Graph, weights: WeightSource, options: CompileOptions) -> Program:
        return self.inner.compile(spoil(graph, self.kind), weights, options)


def spoil(graph: Graph, kind: type[Op]) -> Graph:
    """``graph`` with what every op of type ``kind`` gives multiplied by ``OFF``: of a ``Route`` the gates.

    Raises ``ValueError`` when there is none.
    """
    found, values = [], list(graph.values)
    for op in graph.ops:
        if type(op) is not kind:
            found.append(op)
        elif isinstance(op, (ops.Route, ops.Logits)):
            found.append(replace(op, scale=op.scale * OFF))
        elif isinstance(op, ops.Hidden):  # its rows leave the program: what it reads is off instead
            wrong = _like(op.x, values)
            found += [ops.Scale(wrong, op.x, OFF), replace(op, x=wrong)]
        else:
            right = _like(op.out, values)
            found += [replace(op, out=right), ops.Scale(op.out, right, OFF)]
    if not any(type(op) is kind for op in graph.ops):
        raise ValueError(f"no {kind.__name__} in the graph of '{graph.architecture}'")
    return replace(graph, ops=tuple(found), values=tuple(values))


def _like(value: Value, values: list[Value]) -> Value:
    values.append(replace(value, id=len(values)))
    return values[-1]
