"""``check_graph`` catches every way in which a rewrite can break a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rase.graph import ops
from rase.graph.check import check_graph
from rase.testing.tiny import TINY_QWEN3


def broken(graph, index, **changes):
    """The graph with one op changed."""
    changed = list(graph.ops)
    changed[index] = replace(changed[index], **changes)
    return replace(graph, ops=tuple(changed))


@pytest.fixture(scope="module")
def graph():
    return TINY_QWEN3.but(factors=None).graph()


def find(graph, kind):
    return next(i for i, op in enumerate(graph.ops) if isinstance(op, kind))


def test_the_builders_graph_passes(graph):
    check_graph(graph)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (ops.RmsNorm, {"group": 7}, "in groups of 7"),
        (ops.RmsNorm, {"eps": 0.0}, "eps"),
        (ops.Attention, {"layer": 1}, "cache slot"),
        (ops.Attention, {"layer": 2}, "does not fit"),
        (ops.Attention, {"cache": 1}, "does not fit"),
        (ops.Attention, {"mask": ops.Window(4)}, "does not fit"),
        (ops.Attention, {"n_heads": 3}, "q has 128 elements"),
        (ops.Attention, {"n_kv_heads": 3}, "k, v have"),
        (ops.Attention, {"soft_cap": 0.0}, "soft cap"),
        (ops.Rotate, {"head_dim": 24}, "in heads of 24"),
        (ops.Rotate, {"rope": ops.Rope(1e4, 64, "half")}, "turns 64 of 32"),
        (ops.Rotate, {"rope": ops.Rope(1e4, 5, "half")}, "odd number"),
        (ops.Rotate, {"rope": ops.Rope(1e4, 32, "half", factors="absent")}, "factors"),
        (ops.Linear, {"bias": ops.Weight("b", (3,), ("heads",))}, "'b' is not the graph's"),
        (ops.Linear, {"x": ops.Value(99, "tokens", 64)}, "before it is written"),
        (ops.Linear, {"out": ops.Value(0, "tokens", 64)}, "a second time"),
        (ops.Linear, {"x": ops.Value(0, "tokens", 65)}, "differs from the graph's value"),
    ],
)
def test_a_broken_op_is_named(graph, kind, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        check_graph(broken(graph, find(graph, kind), **changes))
    assert kind.__name__ in str(caught.value) or "cache slot" in str(caught.value)


def test_an_op_of_the_wrong_width_is_named(graph):
    index = find(graph, ops.Linear)
    out = replace(graph.ops[index].out, dim=9)
    values = tuple(out if value.id == out.id else value for value in graph.values)
    with pytest.raises(ValueError, match="writes 9 elements, its matrix has 128 rows"):
        check_graph(replace(broken(graph, index, out=out), values=values))


def test_a_layer_that_nothing_writes_and_a_graph_without_outputs(graph):
    grown = replace(graph.caches[0], n_layers=3)
    with pytest.raises(ValueError, match="layers that no op writes"):
        check_graph(replace(graph, caches=(grown,)))
    with pytest.raises(ValueError, match="no output"):
        check_graph(replace(graph, outputs={}))
