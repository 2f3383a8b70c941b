"""Checks that a graph is well formed: a builder's, or one that a rewrite made from another.

The builder blames files; this blames whoever composed the ops, so it raises plain ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rase.graph import ops
from rase.graph.ops import Attention, Embed, Graph, Op, Window

__all__ = ["check_graph"]


def check_graph(graph: Graph) -> None:
    """Raise ``ValueError`` unless every value is written once before it is read and all dimensions agree."""
    written: set[int] = set()
    cached: set[tuple[int, int]] = set()
    for index, op in enumerate(graph.ops):
        where = f"op {index} ({type(op).__name__})"
        _require(op.out.id not in written, f"{where} writes %{op.out.id} a second time")
        _require(graph.values[op.out.id] == op.out, f"{where}: %{op.out.id} differs from the graph's value")
        for value in op.inputs:
            _require(value.id in written, f"{where} reads %{value.id} before it is written")
            _require(graph.values[value.id] == value, f"{where}: %{value.id} differs from the graph's value")
        for weight in op.weights:
            _require(graph.weights.get(weight.name) == weight, f"{where}: '{weight.name}' is not the graph's")
            _require(len(weight.shape) == len(weight.axes), f"{where}: '{weight.name}' lacks axis names")
        check = _CHECKS.get(type(op))
        if check is not None:
            for holds, message in check(op, graph):
                _require(holds, f"{where}: {message}")
        if isinstance(op, (Attention, ops.CausalConv, ops.DeltaRule)):
            slot = (op.cache, op.layer)
            _require(slot not in cached, f"{where}: cache slot {slot} is written a second time")
            cached.add(slot)
        written.add(op.out.id)
    for cache, group in enumerate(graph.caches):
        layers = {layer for slot, layer in cached if slot == cache}
        _require(layers == set(range(group.n_layers)), f"cache {cache} has layers that no op writes")
    _require(len(graph.outputs) == 1, "the graph has no output, or several")
    for name, value in graph.outputs.items():
        _require(value.id in written, f"output '{name}' is never written")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


Facts = list[tuple[bool, str]]


def _matrix(op: Any, graph: Graph) -> Facts:
    out, depth = op.weight.shape
    facts = [(op.out.dim == out, f"writes {op.out.dim} elements, its matrix has {out} rows")]
    if not isinstance(op, Embed):
        facts.append((op.x.dim == depth, f"reads {op.x.dim} elements, its matrix has {depth} columns"))
    if getattr(op, "bias", None) is not None:
        facts.append((op.bias.shape == (out,), f"bias {op.bias.shape} for {out} outputs"))
    return facts


def _embed(op: Embed, graph: Graph) -> Facts:
    rows, dim = op.weight.shape
    needed = {"ids": graph.vocab_size, "positions": graph.context_length, "first": 1}[op.index]
    exact = op.index == "ids"
    return [
        (dim == op.out.dim, f"writes {op.out.dim} elements, its matrix has {dim} columns"),
        (rows == needed if exact else rows >= needed, f"its matrix has {rows} rows, not {needed}"),
    ]


def _layer_norm(op: ops.LayerNorm, graph: Graph) -> Facts:
    return [
        (op.out.dim == op.x.dim, "changes the dimension"),
        (op.weight.shape == op.bias.shape == (op.x.dim,), f"weight and bias are not ({op.x.dim},)"),
        (op.eps > 0, f"eps {op.eps} is not positive"),
    ]


def _rms_norm(op: ops.RmsNorm, graph: Graph) -> Facts:
    return [
        (op.out.dim == op.x.dim, "changes the dimension"),
        (op.group > 0 and op.x.dim % op.group == 0, f"{op.x.dim} elements in groups of {op.group}"),
        (op.weight.shape == (op.group,), f"weight {op.weight.shape} for groups of {op.group}"),
        (op.eps > 0, f"eps {op.eps} is not positive"),
    ]


def _rotate(op: ops.Rotate, graph: Graph) -> Facts:
    rope = op.rope
    facts = [
        (op.out.dim == op.x.dim, "changes the dimension"),
        (op.head_dim > 0 and op.x.dim % op.head_dim == 0, f"{op.x.dim} elements in heads of {op.head_dim}"),
        (0 < rope.n_dims <= op.head_dim, f"turns {rope.n_dims} of {op.head_dim} elements"),
        (rope.n_dims % 2 == 0, f"turns an odd number of elements, {rope.n_dims}"),
        (rope.theta > 0 and rope.scale > 0, "theta and scale must be positive"),
        (
            rope.yarn is None
            or (rope.theta > 1 and rope.yarn.factor >= 1 and rope.yarn.original_context > 0),
            "YaRN needs a theta above 1, a factor of at least 1 and an original context",
        ),
    ]
    if rope.factors is not None:
        factors = graph.weights.get(rope.factors)
        fit = factors is not None and factors.shape == (rope.n_dims // 2,)
        facts.append((fit, "factors are not (n_dims/2,)"))
    return facts


def _elementwise(op: Any, graph: Graph) -> Facts:
    facts = [(value.dim == op.out.dim, f"operand of {value.dim}, not {op.out.dim}") for value in op.inputs]
    return facts + [(value.rows == op.out.rows, f"operand of rows {value.rows}") for value in op.inputs]


def _route(op: ops.Route, graph: Graph) -> Facts:
    n_experts, depth = op.weight.shape
    return [
        (op.x.dim == depth, f"reads {op.x.dim} elements, its matrix has {depth} columns"),
        (0 < op.k <= n_experts, f"chooses {op.k} of {n_experts} experts"),
        (op.out.dim == 2 * op.k, f"writes {op.out.dim} elements"),
        (op.scale > 0, f"scale {op.scale} is not positive"),
        (n_experts < 2**24, "more experts than float32 can count"),
        (
            {other.k for other in graph.ops if isinstance(other, ops.Route)} == {op.k},
            "layers choose different numbers of experts",
        ),
    ]


def _linear_routed(op: ops.LinearRouted, graph: Graph) -> Facts:
    _, out, depth = op.weight.shape
    return [
        (
            op.out.dim == out and op.x.dim == depth,
            f"{op.x.dim} to {op.out.dim}, its matrices are {out, depth}",
        ),
        (op.out.rows == "routed" and op.x.rows in ("tokens", "routed"), "must write rows of experts"),
        *_routed(op.route, op.weight.shape[0], graph),
    ]


def _mix(op: ops.Mix, graph: Graph) -> Facts:
    return [
        (op.out.dim == op.x.dim, "changes the dimension"),
        (op.x.rows == "routed" and op.out.rows == "tokens", "must read rows of experts and write tokens"),
        *_routed(op.route, None, graph),
    ]


def _routed(route: ops.Value, n_experts: int | None, graph: Graph) -> Facts:
    by = next((op for op in graph.ops if op.out == route), None)
    fits = isinstance(by, ops.Route) and n_experts in (None, by.weight.shape[0])
    return [(fits, "its route is not one, or is one over other experts")]


def _slice(op: ops.Slice, graph: Graph) -> Facts:
    return [
        (op.period > 0 and op.x.dim % op.period == 0, f"{op.x.dim} elements in periods of {op.period}"),
        (
            0 <= op.start < op.start + op.size <= op.period,
            f"{op.size} elements from {op.start} of {op.period}",
        ),
        (op.out.dim * op.period == op.x.dim * op.size, f"writes {op.out.dim} elements"),
    ]


def _attention(op: Attention, graph: Graph) -> Facts:
    group = graph.caches[op.cache] if 0 <= op.cache < len(graph.caches) else None
    window = op.mask.width if isinstance(op.mask, Window) else None
    return [
        (op.head_dim > 0 and op.n_kv_heads > 0, "head_dim and n_kv_heads must be positive"),
        (op.q.dim == op.out.dim == op.n_heads * op.head_dim, f"q has {op.q.dim} elements"),
        (op.k.dim == op.v.dim == op.n_kv_heads * op.head_dim, f"k, v have {op.k.dim}, {op.v.dim} elements"),
        (op.n_kv_heads > 0 and op.n_heads % op.n_kv_heads == 0, f"{op.n_heads} / {op.n_kv_heads} heads"),
        (window is None or window > 0, f"window of {window} tokens"),
        (op.soft_cap is None or op.soft_cap > 0, f"soft cap {op.soft_cap} is not positive"),
        (op.sinks is None or op.sinks.shape == (op.n_heads,), "sinks are not one per head"),
        (
            group is not None
            and 0 <= op.layer < group.n_layers
            and (group.n_kv_heads, group.head_dim) == (op.n_kv_heads, op.head_dim)
            and (group.kind, group.window) == (("full", None) if window is None else ("window", window)),
            f"cache {op.cache}, layer {op.layer} does not fit",
        ),
    ]


def _causal_conv(op: ops.CausalConv, graph: Graph) -> Facts:
    channels, taps = op.weight.shape
    return [
        (op.x.dim == op.out.dim == channels, f"{op.x.dim} elements, its weight has {channels} channels"),
        (taps > 1, f"{taps} taps"),
        _state(op, graph, taps - 1, channels),
    ]


def _delta_rule(op: ops.DeltaRule, graph: Graph) -> Facts:
    keys, values = op.n_k_heads * op.k_dim, op.n_v_heads * op.v_dim
    return [
        (min(op.n_k_heads, op.n_v_heads, op.k_dim, op.v_dim) > 0, "heads and their sizes must be positive"),
        (op.q.dim == op.k.dim == keys, f"q, k have {op.q.dim}, {op.k.dim} elements"),
        (op.v.dim == op.out.dim == values, f"v has {op.v.dim} elements"),
        (op.decay.dim == op.beta.dim == op.n_v_heads, "decay and beta are not one per value head"),
        (op.n_k_heads > 0 and op.n_v_heads % op.n_k_heads == 0, f"{op.n_v_heads} / {op.n_k_heads} heads"),
        _state(op, graph, op.n_v_heads, op.k_dim * op.v_dim),
    ]


def _state(op: Any, graph: Graph, rows: int, cols: int) -> tuple[bool, str]:
    group = graph.caches[op.cache] if 0 <= op.cache < len(graph.caches) else None
    fits = (
        group is not None
        and 0 <= op.layer < group.n_layers
        and (group.kind, group.n_kv_heads, group.head_dim, group.window) == ("state", rows, cols, 2)
    )
    return fits, f"state {op.cache}, layer {op.layer} does not fit"


def _decay(op: ops.Decay, graph: Graph) -> Facts:
    shapes = (op.rate.shape, op.bias.shape)
    fits = shapes == ((op.x.dim,), (op.x.dim,)) and op.out.dim == op.x.dim
    return [(fits, f"{op.x.dim} elements by rate and bias {shapes}")]


def _l2_norm(op: ops.L2Norm, graph: Graph) -> Facts:
    return [
        (op.out.dim == op.x.dim, "changes the dimension"),
        (op.group > 0 and op.x.dim % op.group == 0, f"{op.x.dim} elements in groups of {op.group}"),
        (op.eps > 0, f"eps {op.eps} is not positive"),
    ]


def _logits(op: ops.Logits, graph: Graph) -> Facts:
    return [
        *_matrix(op, graph),
        (op.out.rows == "outputs", "must write rows of outputs"),
        (op.scale > 0, f"scale {op.scale} is not positive"),
        (op.soft_cap is None or op.soft_cap > 0, f"soft cap {op.soft_cap} is not positive"),
    ]


def _hidden(op: ops.Hidden, graph: Graph) -> Facts:
    return [
        (op.out.dim == op.x.dim, "changes the dimension"),
        (op.x.rows == "tokens" and op.out.rows == "outputs", "must read tokens and write rows of outputs"),
    ]


_CHECKS: dict[type[Op], Callable[[Any, Graph], Facts]] = {
    ops.Embed: _embed, ops.RmsNorm: _rms_norm, ops.Linear: _matrix, ops.Rotate: _rotate,
    ops.Activate: _elementwise, ops.Mul: _elementwise, ops.Add: _elementwise, ops.Scale: _elementwise,
    ops.Slice: _slice, ops.Route: _route, ops.LinearRouted: _linear_routed, ops.Mix: _mix,
    ops.Attention: _attention, ops.Logits: _logits, ops.LayerNorm: _layer_norm, ops.Hidden: _hidden,
    ops.CausalConv: _causal_conv, ops.Decay: _decay, ops.DeltaRule: _delta_rule, ops.L2Norm: _l2_norm,
}  # fmt: skip
