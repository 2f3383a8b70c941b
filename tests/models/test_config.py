"""Metadata reads: every key that is absent, wrong or beyond what rase runs is named."""

from __future__ import annotations

import numpy as np
import pytest

from rase.errors import CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.graph import ops
from rase.models import build
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3, ZOO


def with_keys(**keys):
    """TINY-LLAMA's metadata with keys of other values; ``__`` stands for a dot, None removes the key."""
    return TINY_LLAMA.but(extra={name.replace("__", "."): value for name, value in keys.items()})


REQUIRED = [
    "block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
]  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key):
    with pytest.raises(CorruptModelFile, match=rf"'llama\.{key}' is missing") as caught:
        TINY_LLAMA.but(extra={key: None}).graph()
    assert caught.value.expected in ("an integer", "a number") and caught.value.found == "no such key"


@pytest.mark.parametrize("value", ["2", 2.0, True, [2], np.array([2, 2], np.int32)])
def test_an_integer_key_of_another_type_is_named(value):
    with pytest.raises(CorruptModelFile, match=r"'llama\.block_count'") as caught:
        with_keys(block_count=value).graph()
    assert caught.value.expected == "an integer" and type(value).__name__ in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**63])
@pytest.mark.parametrize("key", ["block_count", "embedding_length", "context_length", "attention.head_count"])
def test_an_integer_out_of_range_is_named(key, value):
    with pytest.raises(CorruptModelFile, match=rf"'llama\.{key}': expected an integer from 1"):
        TINY_LLAMA.but(extra={key: value}).graph()


@pytest.mark.parametrize("value", ["1e-5", float("nan"), float("inf"), 0.0, -1e-5, True])
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base"])
def test_a_number_that_cannot_be_is_named(key, value):
    with pytest.raises(CorruptModelFile, match=rf"'llama\.{key}'"):
        TINY_LLAMA.but(extra={key: value}).graph()


def test_defaults_of_keys_that_files_leave_out():
    tiny = TINY_LLAMA.but(extra={
        "attention.key_length": None, "attention.value_length": None, "rope.dimension_count": None,
        "rope.freq_base": None, "attention.head_count_kv": None,
    }, n_kv_heads=4)  # fmt: skip
    graph = tiny.graph()
    rope = next(op.rope for op in graph.ops if isinstance(op, ops.Rotate))
    assert rope == ops.Rope(theta=10000.0, n_dims=16, pairing="neighbour")
    assert graph.caches == (ops.CacheGroup("full", 2, 4, 16),)


@pytest.mark.parametrize("key", ["rope.freq_base_swa", "rope.local.freq_base"])
def test_the_rotary_base_of_gemma3s_local_layers_has_two_names(key):
    tiny = ZOO["gemma3"]
    graph = tiny.but(extra={key: 5000.0}).graph()
    bases = [op.rope.theta for op in graph.ops if isinstance(op, ops.Rotate)]
    assert bases[::2] == [5000.0] * 5 + [1e6, 5000.0] and tiny.graph().ops != graph.ops


def test_the_largest_gemma3_scales_scores_by_its_width():
    """Of 62 layers, as only the 27B model has; no key says so (its technical report, arXiv 2503.19786)."""
    for n_layers, scale in ((61, 32**-0.5), (62, 12**-0.5)):
        graph = ZOO["gemma3"].but(n_layers=n_layers, dim=48, vocab=8).graph()
        (found,) = {op.scale for op in graph.ops if isinstance(op, ops.Attention)}
        assert found == pytest.approx(scale)


@pytest.mark.parametrize(("value", "cap"), [(8.0, 8.0), (0.0, None), (None, None)])
def test_a_cap_on_the_logits_of_gemma3_is_honoured(value, cap):
    graph = ZOO["gemma3"].but(extra={"final_logit_softcapping": value}).graph()
    assert [op.soft_cap for op in graph.ops if isinstance(op, ops.Logits)] == [cap]


def test_a_head_count_that_does_not_divide_the_width():
    with pytest.raises(CorruptModelFile, match=r"attention\.head_count': expected a divisor of .* 64"):
        with_keys(attention__key_length=None, attention__head_count=3).graph()


@pytest.mark.parametrize("value", [15, 18, 0])
def test_a_rotary_size_that_does_not_fit_the_head(value):
    with pytest.raises(CorruptModelFile, match=r"rope\.dimension_count"):
        with_keys(rope__dimension_count=value).graph()


@pytest.mark.parametrize(
    "key", ["attention.clamp_kqv", "attn_logit_softcapping", "attention.temperature_scale", "no.such.key"]
)
@pytest.mark.parametrize("name", ["llama3.1", "qwen2", "phi3", "granite"])
def test_a_key_that_the_architecture_does_not_know_is_refused(name, key):
    tiny = ZOO[name]
    with pytest.raises(UnsupportedArchitecture, match=f"'{tiny.architecture}.{key}' is not known"):
        tiny.but(extra={**tiny.extra, key: 8.0}).graph()
    for harmless in (0.0, 0, False):
        tiny.but(extra={**tiny.extra, key: harmless}).graph()


@pytest.mark.parametrize("name", ZOO)
def test_keys_that_only_describe_are_read_over(name):
    tiny = ZOO[name]
    own = {"vocab_size": 101, "rope.scaling.finetuned": True, "tensor_data_layout": "Meta AI original pth"}
    assert tiny.but(extra={**tiny.extra, **own}).graph() == tiny.graph()


def test_keys_that_change_what_layers_compute_are_refused():
    with pytest.raises(UnsupportedArchitecture, match="value_length"):
        with_keys(attention__value_length=8).graph()
    with pytest.raises(UnsupportedArchitecture, match="causal"):
        with_keys(attention__causal=False).graph()
    with pytest.raises(CorruptModelFile, match=r"ffn_gate_inp\.weight' is missing"):
        with_keys(expert_count=8, expert_used_count=2).graph()
    with pytest.raises(CorruptModelFile, match=r"expert_used_count': expected at most expert_count, 5"):
        ZOO["mixtral"].but(extra={"expert_used_count": 6}).graph()
    with pytest.raises(UnsupportedArchitecture, match=r"feed_forward_length' differs between layers"):
        with_keys(feed_forward_length=np.array([96, 64], np.int32)).graph()


# Rotary scaling


def rope_of(tiny):
    return next(op.rope for op in tiny.graph().ops if isinstance(op, ops.Rotate))


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, 4.0),
        ({"rope__scaling__factor": 4.0}, 4.0),
        ({"rope__scale_linear": 2.0}, 2.0),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, 1.0),
        ({"rope__scaling__type": "linear"}, 1.0),
        ({}, 1.0),
    ],
)
def test_linear_scaling(keys, scale):
    assert rope_of(with_keys(**keys)).scale == scale


def test_yarn_is_read_with_its_defaults():
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    with pytest.raises(CorruptModelFile, match=r"original_context_length' is missing"):
        with_keys(**keys).graph()
    keys["rope__scaling__original_context_length"] = 256
    assert rope_of(with_keys(**keys)).yarn == ops.Yarn(4.0, 256, 32.0, 1.0)
    assert rope_of(with_keys(**keys)).scale == 1.0
    found = rope_of(
        with_keys(**keys, rope__scaling__yarn_beta_fast=16.0, rope__scaling__yarn_attn_factor=1.5)
    )
    assert (found.yarn.beta_fast, found.attn_factor) == (16.0, 1.5)
    with pytest.raises(CorruptModelFile, match="at least 1"):
        with_keys(**keys | {"rope__scaling__factor": 0.5}).graph()
    with pytest.raises(UnsupportedArchitecture, match="yarn_ext_factor"):
        with_keys(**keys, rope__scaling__yarn_ext_factor=0.5).graph()


@pytest.mark.parametrize(("context", "factors"), [(128, "long"), (33, "long"), (32, "short"), (8, "short")])
def test_long_rope_is_fixed_by_the_context_of_the_manifest(context, factors):
    graph = ZOO["phi3-long"].graph(context_length=context)
    rope = next(op.rope for op in graph.ops if isinstance(op, ops.Rotate))
    assert rope.factors == f"rope_factors_{factors}.weight" and set(graph.weights) >= {rope.factors}


@pytest.mark.parametrize("kind", ["longlongrope", "dynamic"])
@pytest.mark.parametrize("tiny", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
def test_other_scaling_is_refused_by_name(tiny, kind):
    with pytest.raises(UnsupportedArchitecture, match=f"rope scaling '{kind}'"):
        tiny.but(extra={"rope.scaling.type": kind, "rope.scaling.factor": 4.0}).graph()


@pytest.mark.parametrize("tiny", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
def test_long_rope_without_its_factors_is_refused(tiny):
    with pytest.raises(UnsupportedArchitecture, match="rope scaling 'longrope'"):
        tiny.but(extra={"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19}).graph()
    assert ZOO["phi3-long"].but(extra=ZOO["phi3-long"].extra | {"rope.scaling.type": "longrope"}).graph()


def test_long_rope_factors_without_a_key_are_refused_by_name():
    """Some files say nothing of long rope in their metadata: only the tensors tell."""
    tiny = TINY_LLAMA.but()
    tensors = {**tiny.source.tensors, "rope_factors_long.weight": tiny.source.tensors["output_norm.weight"]}
    with pytest.raises(UnsupportedArchitecture, match=r"rope_factors_long\.weight"):
        build(tiny.metadata, tensors)


# Windows, context and vocabulary


@pytest.mark.parametrize(("value", "mask"), [(None, ops.Causal()), (0, ops.Causal()), (5, ops.Window(5))])
def test_a_sliding_window_is_honoured_and_zero_means_none(value, mask):
    graph = with_keys(attention__sliding_window=value).graph()
    assert {op.mask for op in graph.ops if isinstance(op, ops.Attention)} == {mask}


def test_the_manifest_may_lower_the_context_but_not_raise_it():
    assert TINY_LLAMA.graph().context_length == 1024
    assert TINY_LLAMA.graph(context_length=100).context_length == 100
    assert TINY_LLAMA.graph(context_length=1024).context_length == 1024
    for wanted in (1025, 0, -1):
        with pytest.raises(ManifestError, match="expected 1 to 1024") as caught:
            TINY_LLAMA.graph(context_length=wanted)
        assert "--context-length 1024" in caught.value.hint


def test_the_vocabulary_is_the_rows_of_the_embedding():
    assert with_keys(vocab_size=7).graph().vocab_size == 101
    tensors = dict(TINY_LLAMA.source.tensors)
    del tensors["token_embd.weight"]
    with pytest.raises(CorruptModelFile, match=r"token_embd\.weight"):
        build(TINY_LLAMA.metadata, tensors)
    tensors["token_embd.weight"] = TINY_LLAMA.source.tensors["output_norm.weight"]
    with pytest.raises(CorruptModelFile, match=r"expected a matrix"):
        build(TINY_LLAMA.metadata, tensors)


def test_a_layer_that_is_missing_is_named():
    with pytest.raises(CorruptModelFile, match=r"'blk\.2\.attn_norm\.weight' is missing"):
        with_keys(block_count=3).graph()


def test_a_layer_too_many_is_named():
    with pytest.raises(UnsupportedArchitecture, match=r"'blk\.1\."):
        with_keys(block_count=1).graph()
