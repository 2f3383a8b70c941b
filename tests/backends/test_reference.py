"""The reference backend keeps the contract (closeness instead of bits), and its own two options."""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends.base import CompileOptions
from rase.backends.reference import ReferenceBackend
from rase.errors import CorruptModelFile, InvalidSetting, UnsupportedArchitecture
from rase.graph import ops
from rase.graph.builder import GraphBuilder
from rase.testing import BackendContract
from rase.testing.contract import MODELS
from rase.testing.programs import nmse, run_chunks
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3
from rase.testing.weights import MemoryWeights


class TestReference(BackendContract):
    exact = False
    numerics = ("portable",)
    threads = (1, 2)

    def backend(self):
        return ReferenceBackend("float16")

    @pytest.fixture(params=["llama window Q8_0"])  # its ops know neither formats nor sizes
    def tiny(self, request):
        return MODELS[request.param]


def run(kv_dtype, tiny, ids):
    with tiny.compile(ReferenceBackend(kv_dtype)) as program:
        return run_chunks(program, ids)


def test_float16_kv_costs_what_float16_costs():
    ids = TINY_LLAMA.ids(60)
    error = nmse(run("float16", TINY_LLAMA, ids), run("float64", TINY_LLAMA, ids))
    assert 1e-10 < error < 1e-6, f"NMSE {error:.3g}"


def test_float16_kv_rounds_through_float32():
    """1 + 2^-11 + 2^-40 is above a tie of float16, and on it as float32: it must go to the even side."""
    value = 1 + 2.0**-11 + 2.0**-40
    program = TINY_LLAMA.compile(ReferenceBackend("float16"))
    op = next(op for op in program.graph.ops if isinstance(op, ops.Attention))
    from rase.backends.base import PROMPT, Batch

    k = np.full((1, op.n_kv_heads, op.head_dim), value)
    program.store(op, Batch.of([0], 0, [0], PROMPT), k, k)
    keys, values = program.cached(op, np.array([0]), 0, 0)
    assert np.unique(keys) == 1.0 and np.unique(values) == 1.0


def test_unknown_kv_dtype():
    with pytest.raises(InvalidSetting, match="kv_dtype"):
        ReferenceBackend("bf16")


def test_estimate_counts_weights_and_pages():
    tiny = TINY_QWEN3
    # K and V of 32 positions as float64, in 2 layers with 2 heads of 32
    estimate = ReferenceBackend().estimate(tiny.graph(), tiny.source.tensors, CompileOptions())
    with tiny.compile(ReferenceBackend()) as program:
        assert estimate.pages == program.page_bytes == (2 * 8 * 32 * 2 * 2 * 32,)
        assert estimate.weights == sum(array.nbytes for array in program._weights.values())
        stored = sum(array.nbytes for array in program._stores)
        assert stored == 64 * program.page_bytes[0]
    assert estimate.total(33) == estimate.weights + estimate.scratch + 2 * estimate.page


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_rope_factors_that_cannot_be_are_refused(bad):
    tiny = TINY_LLAMA.but(factors=(1, 1, 1, bad, 1, 1, 1, 1))
    with pytest.raises(CorruptModelFile, match="index 3"):
        tiny.compile(ReferenceBackend())


def test_an_op_that_it_does_not_know_is_refused_by_name():
    from dataclasses import dataclass, replace

    @dataclass(frozen=True)
    class Route(ops.Op):
        x: ops.Value

    graph = TINY_LLAMA.graph()
    out = ops.Value(len(graph.values), "tokens", 4)
    graph = replace(graph, ops=(*graph.ops, Route(out, graph.values[0])), values=(*graph.values, out))
    for call in ("estimate", "compile"):
        source = TINY_LLAMA.source.tensors if call == "estimate" else TINY_LLAMA.source
        with pytest.raises(UnsupportedArchitecture, match="op Route"):
            getattr(ReferenceBackend(), call)(graph, source, CompileOptions())


# Parts of the vocabulary that no architecture here uses yet, against formulas written out by hand


def one_layer(tokens, **attention):
    """Attention alone: identity projections on a one-hot embedding of width 4, one head."""
    eye = np.eye(4, dtype=np.float32)
    tensors = {"token_embd.weight": 2 * eye, "output.weight": eye}
    tensors["sinks.weight"] = np.array([0.5], np.float32)
    if "sinks" not in attention:
        del tensors["sinks.weight"]
    source = MemoryWeights(tensors)
    g = GraphBuilder(source.tensors, architecture="toy", sizes={"vocab": 4, "dim": 4}, context_length=64)
    h = g.embed("token_embd")
    g.logits(g.attention(h, h, h, head_dim=4, **attention), "output")
    program = ReferenceBackend().compile(g.finish(), source, CompileOptions())
    program.reserve_pages(2)
    return run_chunks(program, tokens)


def test_soft_cap():
    found = one_layer([0, 1], scale=1.0, soft_cap=3.0)
    weight = np.exp([3 * np.tanh(0 / 3), 3 * np.tanh(4 / 3)])
    np.testing.assert_allclose(found[1, :2], 2 * weight / weight.sum(), rtol=1e-6)


def test_sinks():
    found = one_layer([0, 1], scale=1.0, sinks="sinks")
    weight = np.exp([0, 4, 0.5])
    np.testing.assert_allclose(found[1, :2], (2 * weight / weight.sum())[:2], rtol=1e-6)


def test_bidirectional_mask():
    found = one_layer([0, 1], scale=1.0, mask=ops.Bidirectional())
    weight = np.exp([4, 0])
    np.testing.assert_allclose(found[0, :2], 2 * weight / weight.sum(), rtol=1e-6)


@pytest.mark.parametrize(("tanh", "expected"), [(False, 1.9544997361), (True, 1.9545976878)])
def test_gelu(tanh, expected):
    """gelu(2) by erf and by tanh."""
    eye = np.eye(4, dtype=np.float32)
    source = MemoryWeights({"token_embd.weight": eye})
    g = GraphBuilder(source.tensors, architecture="toy", sizes={"vocab": 4, "dim": 4}, context_length=64)
    h = g.embed("token_embd", scale=2.0)
    g.logits(g.gelu(h, tanh=tanh), "token_embd")
    program = ReferenceBackend().compile(g.finish(), source, CompileOptions())
    program.reserve_pages(1)
    np.testing.assert_allclose(run_chunks(program, [1])[0], [0, expected, 0, 0], rtol=2e-7)


def test_attention_factor_multiplies_the_rotated_vector():
    eye = np.eye(4, dtype=np.float32)
    source = MemoryWeights({"token_embd.weight": eye})
    g = GraphBuilder(source.tensors, architecture="toy", sizes={"vocab": 4, "dim": 4}, context_length=64)
    rope = ops.Rope(100.0, 4, "half", attn_factor=1.5)
    g.logits(g.rotate(g.embed("token_embd"), rope, 4), "token_embd")
    program = ReferenceBackend().compile(g.finish(), source, CompileOptions())
    program.reserve_pages(1)
    found = run_chunks(program, [0, 0, 1])
    np.testing.assert_allclose(found[1], [1.5 * np.cos(1), 0, 1.5 * np.sin(1), 0], rtol=1e-6)
    np.testing.assert_allclose(found[2], [0, 1.5 * np.cos(0.2), 0, 1.5 * np.sin(0.2)], rtol=1e-6)
