"""Old Mixtral files: one tensor per expert instead of one stack."""

from __future__ import annotations

import pytest

from rase.backends import get_backend
from rase.backends.base import CompileOptions
from rase.benchmark.cost import cost_of
from rase.errors import CorruptModelFile, UnsupportedFormat
from rase.graph import ops
from rase.models import build
from rase.testing.programs import assert_same_bits, run_chunks
from rase.testing.tiny import WIDE_LLAMA, ZOO
from rase.testing.weights import MemoryWeights
from tests.support.backends import BACKENDS, backend_named

MIXTRAL = ZOO["mixtral"]
WIDE = WIDE_LLAMA.but(n_experts=3, hidden=256, vocab=64, extra={"expert_used_count": 2})
MODELS = {
    "whole groups": MIXTRAL,
    "groups cut short": MIXTRAL.but(hidden=40),
    "Q4_0": MIXTRAL.but(matrices="Q4_0"),
    "Q4_K": WIDE.but(matrices="Q4_K"),
}


def in_parts(tiny, order=1):
    """The same weights with each stack cut into its matrices; ``order`` -1 turns the file round."""
    tensors = {}
    for name, info in tiny.source.tensors.items():
        raw, fmt = tiny.source.raw[name], info.format.name
        if "_exps" not in name:
            tensors[name] = (raw, info.shape, fmt)
            continue
        size = info.nbytes // info.shape[0]
        for e in range(info.shape[0]):
            part = (raw[e * size : (e + 1) * size], info.shape[1:], fmt)
            tensors[name.replace("_exps", f".{e}")] = part
    return MemoryWeights(dict(list(tensors.items())[::order]))


def run(tiny, source, backend):
    graph = build(tiny.metadata, source.tensors)
    with backend_named(backend).compile(graph, source, CompileOptions(threads=1)) as program:
        program.reserve_pages(2)
        return run_chunks(program, tiny.ids(40))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", MODELS)
def test_parts_give_the_bits_of_a_stack(model, backend):
    tiny = MODELS[model]
    expected = run(tiny, tiny.source, backend)
    for order in (1, -1):
        assert_same_bits(run(tiny, in_parts(tiny, order), backend), expected, f"file order {order}")


def test_estimate_and_cost_count_every_part():
    parts = in_parts(MIXTRAL)
    graph = build(MIXTRAL.metadata, parts.tensors)
    for backend in map(backend_named, BACKENDS):
        found = backend.estimate(graph, parts.tensors, CompileOptions())
        whole = backend.estimate(MIXTRAL.graph(), MIXTRAL.source.tensors, CompileOptions())
        assert (found.weights, found.pages, found.scratch) == (whole.weights, whole.pages, whole.scratch)
    assert cost_of(graph, parts.tensors) == cost_of(MIXTRAL.graph(), MIXTRAL.source.tensors)


def test_a_missing_expert_is_named():
    tensors = dict(in_parts(MIXTRAL).tensors)
    del tensors["blk.1.ffn_up.3.weight"]
    with pytest.raises(CorruptModelFile, match=r"'blk\.1\.ffn_up\.3\.weight' is missing"):
        build(MIXTRAL.metadata, tensors)


def test_an_expert_of_another_shape_is_named():
    tensors = dict(in_parts(MIXTRAL).tensors)
    tensors["blk.0.ffn_down.2.weight"] = tensors["blk.0.ffn_up.2.weight"]
    with pytest.raises(CorruptModelFile, match=r"'blk\.0\.ffn_down\.2\.weight' has the wrong shape"):
        build(MIXTRAL.metadata, tensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_experts_of_different_formats_are_refused(backend):
    tensors = in_parts(MODELS["Q4_0"])
    other = in_parts(MODELS["Q4_0"].but(matrices="Q8_0"))
    name = "blk.0.ffn_gate.1.weight"
    tensors.tensors[name], tensors.raw[name] = other.tensors[name], other.raw[name]
    graph = build(MIXTRAL.metadata, tensors.tensors)
    with pytest.raises(UnsupportedFormat, match=r"different formats.*found Q4_0, Q8_0"):
        backend_named(backend).compile(graph, tensors, CompileOptions())


def test_several_threads_fill_one_stack(tmp_path):
    """Through a real file: slices of the parts arrive in any order."""
    from rase.gguf.reader import GgufFile
    from rase.gguf.stream import HashedTensors
    from tests.support.gguf_build import write_gguf

    tiny = MODELS["Q4_K"]
    source = in_parts(tiny)
    tensors = {name: (source.raw[name], i.shape, i.format.name) for name, i in source.tensors.items()}
    path = write_gguf(tmp_path / "parts.gguf", tiny.metadata, tensors)
    with GgufFile.open(path) as file:
        graph = build(file.metadata, file.tensors)
        with get_backend("cpu").compile(graph, HashedTensors(file), CompileOptions(threads=4)) as program:
            program.reserve_pages(2)
            assert_same_bits(run_chunks(program, tiny.ids(40)), run(tiny, tiny.source, "cpu"))


@pytest.mark.parametrize(("value", "scale"), [(2.5, 2.5), (0.0, 1.0), (None, 1.0)])
def test_gates_are_scaled_as_the_file_says(value, scale):
    tiny = ZOO["qwen3moe"]
    graph = tiny.but(extra={**tiny.extra, "expert_weights_scale": value}).graph()
    assert {op.scale for op in graph.ops if isinstance(op, ops.Route)} == {scale}


def test_more_experts_for_a_token_than_there_are_is_refused():
    tiny = ZOO["mixtral"]
    with pytest.raises(CorruptModelFile, match=r"expert_used_count.*at most expert_count, 5"):
        tiny.but(extra={"expert_used_count": 6}).graph()
