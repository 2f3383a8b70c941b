"""Prints a graph: one line per op with its shapes, its weights and its constants."""

from __future__ import annotations

import dataclasses

from rase.graph.ops import Graph, Op, Value, Weight

__all__ = ["describe"]


def describe(graph: Graph) -> str:
    """One heading, one line per cache group, one line per op, one line per output."""
    lines = [
        f"graph {graph.architecture}: dim {graph.dim}, vocab {graph.vocab_size}, "
        f"context {graph.context_length}, {len(graph.ops)} ops, {len(graph.weights)} weights"
    ]
    for index, group in enumerate(graph.caches):
        window = f" of {group.window}" if group.window is not None else ""
        lines.append(
            f"  cache {index}: {group.kind}{window}, {group.n_layers} layers, "
            f"{group.n_kv_heads} K/V heads x {group.head_dim}"
        )
    lines += [f"  {_op(op)}" for op in graph.ops]
    lines += [f"  {name} = {_value(value)}" for name, value in graph.outputs.items()]
    return "\n".join(lines)


def _op(op: Op) -> str:
    operands = []
    for field in dataclasses.fields(op):
        operand = getattr(op, field.name)
        if field.name == "out" or operand is None:
            continue
        if isinstance(operand, Value):
            operands.append(f"%{operand.id}")
        elif isinstance(operand, Weight):
            operands.append(f"{operand.name}[{_axes(operand)}]")
        else:
            operands.append(f"{field.name}={operand}")
    return f"{_value(op.out)} = {type(op).__name__.lower()}({', '.join(operands)})"


def _value(value: Value) -> str:
    return f"%{value.id}[{value.rows}, {value.dim}]"


def _axes(weight: Weight) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in zip(weight.axes, weight.shape, strict=True))
