"""The graph builder: what it makes of tensors, and what it says about wrong ones."""

from __future__ import annotations

import pytest

from rase.errors import CorruptModelFile, UnsupportedArchitecture
from rase.graph import ops
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Rope, Window


class Shape:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


TENSORS = {
    "token_embd.weight": Shape(10, 8),
    "norm.weight": Shape(8),
    "attn_q.weight": Shape(8, 8),
    "attn_k.weight": Shape(4, 8),
    "attn_v.weight": Shape(4, 8),
}


def builder(**changes: Shape | None) -> GraphBuilder:
    tensors = {**TENSORS, **{f"{name}.weight": shape for name, shape in changes.items()}}
    kept = {name: shape for name, shape in tensors.items() if shape is not None}
    sizes = {"vocab": 10, "dim": 8, "heads": 8, "kv_heads": 4, "hidden": 12}
    return GraphBuilder(kept, architecture="toy", sizes=sizes, context_length=100)


def attend(g: GraphBuilder, **arguments: object) -> ops.Value:
    x = g.rms_norm(g.embed("token_embd"), "norm", 1e-5)
    q, k, v = g.linear(x, "attn_q", "attn_k", "attn_v")
    return g.attention(q, k, v, head_dim=4, **arguments)


def test_a_graph_names_its_outputs_weights_axes_and_caches():
    g = builder()
    g.logits(attend(g), "output", tied="token_embd")
    graph = g.finish()
    assert graph.outputs["logits"] == ops.Value(id=6, rows="outputs", dim=10)
    assert graph.weights["attn_k.weight"].axes == ("kv_heads", "dim")
    assert graph.caches == (ops.CacheGroup("full", 1, 1, 4),)
    assert [type(op).__name__ for op in graph.ops] == [
        "Embed", "RmsNorm", "Linear", "Linear", "Linear", "Attention", "Logits",
    ]  # fmt: skip
    assert graph.ops[5].scale == 0.5 and graph.ops[5].n_heads == 2 and graph.ops[5].n_kv_heads == 1


def test_layers_of_one_mask_share_a_cache_group_and_other_masks_get_their_own():
    g = builder()
    for mask in (Window(5), None, Window(5), Window(6), None):
        out = attend(g, mask=mask)
    g.logits(out, "token_embd")
    graph = g.finish()
    assert [(c.kind, c.n_layers, c.window) for c in graph.caches] == [
        ("window", 2, 5), ("full", 2, None), ("window", 1, 6),
    ]  # fmt: skip
    slots = [(op.cache, op.layer) for op in graph.ops if isinstance(op, ops.Attention)]
    assert slots == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1)]


def test_a_bias_joins_the_linear_where_the_file_has_one():
    g = builder()
    g.tensors = {**g.tensors, "attn_v.bias": Shape(4)}
    attend(g)
    linear = [op for op in g._ops if isinstance(op, ops.Linear)]
    assert [op.bias and op.bias.name for op in linear] == [None, None, "attn_v.bias"]
    assert linear[2].bias.axes == ("kv_heads",)


def test_a_wrong_shape_names_tensor_expected_and_found():
    with pytest.raises(CorruptModelFile) as caught:
        attend(builder(attn_k=Shape(8, 8)))
    assert "'attn_k.weight'" in str(caught.value)
    assert (caught.value.expected, caught.value.found) == ("(4, 8)", "(8, 8)")
    assert caught.value.data["tensor"] == "attn_k.weight"


def test_a_matrix_stored_transposed_is_a_wrong_shape():
    with pytest.raises(CorruptModelFile, match="attn_k"):
        attend(builder(attn_k=Shape(8, 4)))


def test_a_missing_tensor_is_named():
    with pytest.raises(CorruptModelFile, match=r"'norm\.weight' is missing"):
        attend(builder(norm=None))


def test_a_bias_of_the_wrong_length_is_named():
    g = builder()
    g.tensors = {**g.tensors, "attn_v.bias": Shape(5)}
    with pytest.raises(CorruptModelFile, match=r"attn_v\.bias"):
        attend(g)


def test_a_tensor_that_no_op_reads_is_refused_by_name():
    g = builder(attn_gate=Shape(8, 8))
    g.logits(attend(g), "token_embd")
    with pytest.raises(UnsupportedArchitecture, match=r"'attn_gate\.weight'"):
        g.finish()


def test_rope_factors_are_checked_and_become_a_weight_of_the_graph():
    g = builder(rope_freqs=Shape(2))
    rope = Rope(1e4, 4, "half", factors="rope_freqs")
    x = g.rotate(g.embed("token_embd"), rope, 4)
    assert g._ops[-1].rope.factors == "rope_freqs.weight" and g._weights["rope_freqs.weight"].shape == (2,)
    with pytest.raises(CorruptModelFile, match="rope_freqs"):
        g.rotate(x, Rope(1e4, 2, "half", factors="rope_freqs"), 4)


def test_an_architecture_declares_axes_of_its_own():
    g = builder(shared_gate=Shape(3, 8))
    g.sizes["experts"] = 3
    out = g.linear(g.embed("token_embd"), "shared_gate", axes=("experts", "dim"))
    assert out.dim == 3 and g._weights["shared_gate.weight"].axes == ("experts", "dim")


def test_logits_prefer_the_output_matrix_and_fall_back_to_the_tied_one():
    for tensors, expected in (({}, "token_embd.weight"), ({"output": Shape(10, 8)}, "output.weight")):
        g = builder(**tensors)
        g.logits(g.embed("token_embd"), "output", tied="token_embd")
        assert g._ops[-1].weight.name == expected


def test_describe_shows_every_op_with_shapes_and_names():
    g = builder()
    g.logits(attend(g, mask=Window(5)), "output", tied="token_embd")
    text = g.finish().describe()
    for part in (
        "graph toy: dim 8, vocab 10, context 100, 7 ops, 5 weights",
        "cache 0: window of 5, 1 layers, 1 K/V heads x 4",
        "%3[tokens, 4] = linear(%1, attn_k.weight[kv_heads 4, dim 8])",
        "mask=Window(width=5)",
        "logits = %6[outputs, 10]",
    ):
        assert part in text, f"{part!r} is not in\n{text}"
