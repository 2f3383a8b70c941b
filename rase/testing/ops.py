"""Every op of the vocabulary, one by one, against the float64 reference, and in every tensor format.

``CASES`` are graphs of a few ops around the one that is meant; what it gives is what the graph gives. A
prompt in two chunks is followed by generated tokens, beside a second sequence. An op without a case fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from rase.backends.base import GENERATED, PROMPT, Backend, Batch, CompileOptions
from rase.backends.reference import ReferenceBackend
from rase.errors import UnsupportedArchitecture, UnsupportedFormat
from rase.gguf.formats import FORMATS
from rase.graph import ops
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Graph, Op, Value
from rase.testing.blocks import random_blocks
from rase.testing.faults import Spoiled
from rase.testing.programs import assert_close, nmse
from rase.testing.promises import Promises
from rase.testing.weights import MemoryWeights

__all__ = ["CASES", "OpContract", "case", "case_rows"]

VOCAB, DIM, HEAD, EXPERTS, CONTEXT = 61, 64, 16, 6, 128
LENGTH = 45  # of the first sequence; the second has 9 tokens

Build = Callable[[GraphBuilder, Value], Value]
SIZES = {
    "vocab": VOCAB, "dim": DIM, "heads": DIM, "kv_heads": DIM // 2, "hidden": 96, "head_dim": HEAD,
    "experts": EXPERTS, "positions": CONTEXT, "token_types": 2, "channels": DIM, "taps": 4, "n_heads": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The op that is meant, the tensors beside the embedding, the ops behind it, sizes that differ."""

    kind: type[Op]
    tensors: dict[str, Any]
    build: Build
    sizes: dict[str, int] = field(default_factory=dict)


def _vectors(size: int, *names: str) -> dict[str, Any]:
    rng = np.random.default_rng(len(names) + size)
    return {name: rng.uniform(0.5, 1.5, size).astype(np.float32) for name in names}


def _matrices(format: str = "F32", **shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(sum(map(sum, shapes.values())))
    return {
        f"{name}.weight": (random_blocks(format, shape, rng, 0.12), shape, format)
        for name, shape in shapes.items()
    }


def _attention(**options: Any) -> Build:
    def build(g: GraphBuilder, x: Value) -> Value:
        q, k, v = g.linear(x, "attn_q", "attn_k", "attn_v")
        return g.attention(q, k, v, head_dim=HEAD, **options)

    return build


def _routed(k: int, **options: Any) -> Build:
    def build(g: GraphBuilder, x: Value) -> Value:
        route = g.route(x, "ffn_gate_inp", k, **options)
        up = g.linear_routed(x, route, "ffn_up_exps")
        return g.mix(g.linear_routed(up, route, "ffn_down_exps"), route)

    return build


def _delta(tiled: bool) -> Build:
    def build(g: GraphBuilder, x: Value) -> Value:
        q, k = g.linear(x, "attn_q", "attn_k", axes=("heads", "dim"))
        v = g.linear(x, "attn_v", axes=("channels", "dim"))
        q, k = g.l2_norm(q, 1e-6, HEAD), g.l2_norm(k, 1e-6, HEAD)
        decay, beta = g.linear(x, "alpha", "beta", axes=("n_heads", "dim"))
        decay, beta = g.decay(decay, "rate", "dt.bias"), g.sigmoid(beta)
        return g.delta_rule(q, k, v, decay, beta, k_dim=HEAD, v_dim=HEAD, tiled=tiled)

    return build


def _rotate(pairing: Any, **options: Any) -> Build:
    n_dims = options.pop("n_dims", HEAD)
    return lambda g, x: g.rotate(x, ops.Rope(10000.0, n_dims, pairing, **options), HEAD)


_QKV = _matrices(attn_q=(DIM, DIM), attn_k=(DIM // 2, DIM), attn_v=(DIM // 2, DIM))
_BIASED = {**_matrices(ffn_up=(96, DIM)), **_vectors(96, "ffn_up.bias")}
_EXPERTS = _matrices(
    ffn_gate_inp=(EXPERTS, DIM), ffn_up_exps=(EXPERTS, 96, DIM), ffn_down_exps=(EXPERTS, DIM, 96)
)
_DELTA = {
    **_matrices(attn_q=(DIM // 2, DIM), attn_k=(DIM // 2, DIM), attn_v=(DIM, DIM)),
    **_matrices(alpha=(4, DIM), beta=(4, DIM)),
    "rate": -_vectors(4, "rate")["rate"], **_vectors(4, "dt.bias"),
}  # fmt: skip
_NORM = _vectors(DIM, "norm.weight")
_LAYER_NORM = _vectors(DIM, "norm.weight", "norm.bias")
_YARN = ops.Yarn(4.0, 32)
_KEYS = {"heads": DIM // 2}

CASES: dict[str, Case] = {
    "embedding with a factor": Case(ops.Embed, {}, lambda g, x: g.embed("token_embd", scale=3.0)),
    "embedding of positions": Case(ops.Embed, _matrices(position_embd=(CONTEXT, DIM)),
                               lambda g, x: g.embed("position_embd", index="positions")),
    "embedding of token types": Case(ops.Embed, _matrices(token_types=(2, DIM)),
                                 lambda g, x: g.add(x, g.embed("token_types", index="first"))),
    "rms norm": Case(ops.RmsNorm, _NORM, lambda g, x: g.rms_norm(x, "norm", 0.1)),
    "rms norm of heads": Case(ops.RmsNorm, _vectors(HEAD, "norm.weight"),
                          lambda g, x: g.rms_norm(x, "norm", 0.1, HEAD)),
    "layer norm": Case(ops.LayerNorm, _LAYER_NORM, lambda g, x: g.layer_norm(x, "norm", 0.1)),
    "linear": Case(ops.Linear, _matrices(ffn_up=(96, DIM)), lambda g, x: g.linear(x, "ffn_up")),
    "linear with a bias": Case(ops.Linear, _BIASED, lambda g, x: g.linear(x, "ffn_up")),
    "linear of a linear": Case(ops.Linear, _matrices(ffn_up=(2048, DIM), ffn_down=(DIM, 2048)),
                               lambda g, x: g.linear(g.linear(x, "ffn_up"), "ffn_down"), {"hidden": 2048}),
    "route": Case(ops.Route, _EXPERTS, _routed(3)),
    "route alone": Case(ops.Route, _EXPERTS, lambda g, x: g.route(x, "ffn_gate_inp", 3)),
    "route with plain gates": Case(ops.Route, _EXPERTS,
                               lambda g, x: g.route(x, "ffn_gate_inp", 2, renormalize=False, scale=2.5)),
    "linear of experts": Case(ops.LinearRouted, _EXPERTS, _routed(2)),
    "mix": Case(ops.Mix, _EXPERTS, _routed(4)),
    "rotate neighbours": Case(ops.Rotate, {}, _rotate("neighbour", scale=2.0)),
    "rotate halves, in part": Case(ops.Rotate, {}, _rotate("half", n_dims=8, attn_factor=1.25)),
    "rotate with factors": Case(ops.Rotate, _vectors(HEAD // 2, "rope.weight"),
                                _rotate("half", factors="rope")),
    "rotate by YaRN": Case(ops.Rotate, {}, _rotate("half", yarn=_YARN)),
    "silu": Case(ops.Activate, {}, lambda g, x: g.silu(x)),
    "gelu": Case(ops.Activate, {}, lambda g, x: g.gelu(x)),
    "gelu by tanh": Case(ops.Activate, {}, lambda g, x: g.gelu(x, tanh=True)),
    "sigmoid": Case(ops.Activate, {}, lambda g, x: g.sigmoid(x)),
    "gated silu": Case(ops.Mul, _matrices(ffn_up=(96, DIM), ffn_gate=(96, DIM)),
                   lambda g, x: g.mul(g.silu(g.linear(x, "ffn_gate")), g.linear(x, "ffn_up"))),
    "mul": Case(ops.Mul, {}, lambda g, x: g.mul(x, g.sigmoid(x))),
    "add": Case(ops.Add, {}, lambda g, x: g.add(x, g.silu(x))),
    "scale": Case(ops.Scale, {}, lambda g, x: g.scale(x, -0.75)),
    "slice": Case(ops.Slice, {}, lambda g, x: g.split(x, 16, 40, 8)[1]),
    "slice of each head": Case(ops.Slice, {}, lambda g, x: g.split(x, 6, 10, period=HEAD)[1]),
    "attention": Case(ops.Attention, _QKV, _attention(scale=0.4)),
    "attention in a window": Case(ops.Attention, _QKV, _attention(mask=ops.Window(20))),
    "attention with a cap": Case(ops.Attention, _QKV, _attention(scale=1.0, soft_cap=3.0)),
    "attention to all": Case(ops.Attention, _QKV, _attention(mask=ops.Bidirectional())),
    "attention with sinks": Case(ops.Attention, {**_QKV, **_vectors(DIM // HEAD, "sinks.weight")},
                             _attention(sinks="sinks")),
    "l2 norm": Case(ops.L2Norm, {}, lambda g, x: g.l2_norm(x, 0.1, HEAD)),
    "convolution": Case(ops.CausalConv, _matrices(conv=(DIM, 4)), lambda g, x: g.causal_conv(x, "conv")),
    "decay": Case(ops.Decay, {"rate": -_vectors(DIM, "rate")["rate"], **_vectors(DIM, "dt.bias")},
              lambda g, x: g.decay(x, "rate", "dt.bias")),
    "delta rule": Case(ops.DeltaRule, _DELTA, _delta(tiled=False), _KEYS),
    "delta rule, tiled": Case(ops.DeltaRule, _DELTA, _delta(tiled=True), _KEYS),
    "logits": Case(ops.Logits, _matrices(output=(VOCAB, DIM)),
               lambda g, x: g.logits(x, "output", scale=0.5, soft_cap=2.0)),
    "hidden": Case(ops.Hidden, {}, lambda g, x: x),
}  # fmt: skip
for _format in FORMATS.values():
    CASES[f"matrices in {_format.name}"] = Case(
        ops.Linear, _matrices(_format.name, token_embd=(VOCAB, 256), ffn_up=(48, 256)),
        lambda g, x: g.linear(x, "ffn_up"), {"dim": 256, "hidden": 48},
    )  # fmt: skip


KINDS = sorted({case.kind for case in CASES.values()}, key=lambda kind: kind.__name__)


@cache
def case(name: str) -> tuple[Graph, MemoryWeights]:
    """The graph and the weights of a case."""
    meant, rng = CASES[name], np.random.default_rng(3)
    embedding = rng.normal(0, 1, (VOCAB, DIM)).astype(np.float32)  # of size 1: nothing hides in an epsilon
    source = MemoryWeights({"token_embd.weight": embedding, **meant.tensors})
    sizes = SIZES | meant.sizes
    g = GraphBuilder(source.tensors, architecture=name, sizes=sizes, context_length=CONTEXT)
    g.leave(*(tensor.removesuffix(".weight") for tensor in source.tensors))
    x = meant.build(g, g.embed("token_embd"))
    if x.rows != "outputs":
        g.hidden(x)
    return g.finish(), source


def case_rows(backend: Backend, name: str, options: dict[str, Any]) -> np.ndarray:
    """What ``backend`` gives for the case: a prompt in two chunks, then generated tokens in company."""
    graph, source = case(name)
    groups, rng = len(graph.caches), np.random.default_rng(11)
    ids, other = (rng.integers(0, VOCAB, n).tolist() for n in (LENGTH, 9))
    with backend.compile(graph, source, CompileOptions(**options)) as program:
        program.reserve_pages(8)
        if graph.whole_input:
            return program.run(Batch.of(ids, 0, [5, 2], PROMPT, range(LENGTH), groups))
        rows = []
        for start, end in ((0, 20), (20, 43)):
            step = Batch.of(ids[start:end], start, [5, 2], PROMPT, range(end - start), groups)
            rows.append(program.run(step))
        rows.append(program.run(Batch.of(ids[43:44], 43, [5, 2], GENERATED, [0], groups)))
        rows.append(program.run(Batch(
            ids=np.array([ids[44], *other], np.int32), positions=np.array([[44, *range(9)]], np.int32),
            sequences=np.array([1] + [0] * 9, np.int32),
            page_tables=np.array([[[7, -1], [5, 2]]] * groups, np.int32).reshape(groups, 2, 2),
            roles=np.array([GENERATED] + [PROMPT] * 9, np.uint8), logits_rows=np.arange(10, dtype=np.int32),
        )))  # fmt: skip
    return np.concatenate(rows)


@cache
def _expected(name: str) -> np.ndarray:
    return case_rows(ReferenceBackend("float16"), name, {})


class OpContract(Promises):
    """One case or more for every op; a fault planted in it must be seen by the same comparison."""

    def test_every_op_has_a_case(self) -> None:
        known = {op for _, op in inspect.getmembers(ops, inspect.isclass) if issubclass(op, Op)} - {Op}
        assert known == {case.kind for case in CASES.values()}

    @pytest.mark.parametrize("name", CASES)
    def test_an_op_is_near_the_reference(self, name: str) -> None:
        if name in self.refused:
            with pytest.raises((UnsupportedArchitecture, UnsupportedFormat)):
                self._found(self.backend(), name)
            return
        for numerics in self.numerics:
            assert_close(self._found(self.backend(), name, numerics), _expected(name), self.gates["op"], name)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_planted_fault_is_seen(self, kind: type[Op]) -> None:
        """The test of the tests above: with every op of this type off by five per cent one of them fails."""
        names = [name for name in CASES if CASES[name].kind is kind and name not in self.refused]
        if names:
            found = self._found(Spoiled(self.backend(), kind), names[0])
            error = nmse(found, _expected(names[0]))
            assert error > 2 * self.gates["op"], f"{names[0]}: a fault goes unseen, NMSE {error:.3g}"

    def _found(self, backend: Backend, name: str, numerics: str | None = None) -> np.ndarray:
        return case_rows(backend, name, {"numerics": numerics or self.numerics[-1], **self.options})
