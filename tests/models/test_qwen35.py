"""What files of Qwen3.5 say, and what is refused of them."""

from __future__ import annotations

import pytest

from rase.errors import CorruptModelFile, UnsupportedArchitecture
from rase.graph import ops
from rase.models import build
from rase.testing.tiny import ZOO
from rase.testing.weights import MemoryWeights

TINY = ZOO["qwen35"]


def but(**keys):
    return TINY.but(extra={**TINY.extra, **{name.replace("__", "."): value for name, value in keys.items()}})


def test_three_of_four_layers_have_states():
    kinds = [type(op) for op in TINY.graph().ops if isinstance(op, ops.DeltaRule | ops.Attention)]
    assert kinds == [ops.DeltaRule] * 3 + [ops.Attention, ops.DeltaRule]


def test_a_file_may_name_its_recurrent_layers():
    """With the array in the file the interval counts no longer."""
    flags = [True, True, True, False, True]
    named = but(full_attention_interval=None, attention__recurrent_layers=flags)
    assert named.graph() == TINY.graph()
    with pytest.raises(CorruptModelFile, match=r"'blk\.3\.attn_qkv\.weight' is missing"):
        but(attention__recurrent_layers=[True] * 5).graph()


def test_layers_that_predict_further_tokens_are_left_out():
    """They count as layers in the file; block 5 here holds what such a layer has."""
    weights = TINY.source.floats()
    extra = {"blk.5.attn_norm.weight": weights["blk.3.attn_norm.weight"]}
    extra["blk.5.nextn.eh_proj.weight"] = weights["blk.3.ffn_gate.weight"]
    source = MemoryWeights({**weights, **extra})
    longer = but(nextn_predict_layers=1, block_count=6)
    graph = build(longer.metadata, source.tensors)
    assert graph.ops == TINY.graph().ops and "blk.5.attn_norm.weight" not in graph.weights
    with pytest.raises(UnsupportedArchitecture, match=r"blk\.5\."):
        build(TINY.metadata, source.tensors)


@pytest.mark.parametrize(
    ("key", "value"), [("ssm.time_step_rank", 5), ("ssm.inner_size", 145), ("ssm.conv_kernel", 1)]
)
def test_sizes_that_do_not_fit_are_named(key, value):
    tiny = TINY.but(extra={**TINY.extra, key: value})
    with pytest.raises(CorruptModelFile, match=key.replace(".", r"\.")):
        build(tiny.metadata, TINY.source.tensors)


@pytest.mark.parametrize("key", ["group_count", "time_step_rank", "state_size", "inner_size", "conv_kernel"])
def test_a_size_that_is_missing_is_named(key):
    with pytest.raises(CorruptModelFile, match=rf"'qwen35\.ssm\.{key}' is missing"):
        build(but(**{f"ssm__{key}": None}).metadata, TINY.source.tensors)


@pytest.mark.parametrize(
    "name",
    ["ssm_a", "ssm_dt.bias", "ssm_conv1d.weight", "ssm_norm.weight", "ssm_out.weight", "attn_gate.weight"],
)
def test_a_tensor_that_is_missing_is_named(name):
    tensors = {key: info for key, info in TINY.source.tensors.items() if key != f"blk.0.{name}"}
    with pytest.raises(CorruptModelFile, match=rf"'blk\.0\.{name}' is missing"):
        build(TINY.metadata, tensors)


@pytest.mark.parametrize("name", ["qwen35moe", "qwen3next"])
def test_sister_architectures_are_refused_by_name(name):
    with pytest.raises(UnsupportedArchitecture, match=f"'{name}'.*every token takes.*dense Qwen3.5"):
        build({**TINY.metadata, "general.architecture": name}, TINY.source.tensors)
