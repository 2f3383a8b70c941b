"""The op vocabulary: what a model computes, as typed ops over float32 buffers.

A ``Graph`` is a flat list of ops in execution order. Every op writes one new ``Value`` (static single
assignment), so a backend is free to reuse buffers, to fuse neighbours and to drop what nothing reads.
Token, row and sequence counts are symbolic (``rows``); every other dimension is fixed. An op that has not
been invented yet is one more dataclass here: a backend looks ops up by type and refuses unknown ones by name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rase.graph.operands import Bidirectional, Causal, Mask, Rope, Value, Weight, Window, Yarn

__all__ = [
    "Activate", "Add", "Attention", "Bidirectional", "CacheGroup", "Causal", "CausalConv", "Decay",
    "DeltaRule", "Embed", "Graph", "Hidden", "L2Norm", "LayerNorm", "Linear", "LinearRouted", "Logits",
    "Mask", "Mix", "Mul", "Op", "RmsNorm", "Rope", "Rotate", "Route", "Scale", "Slice", "Value", "Weight",
    "Window", "Yarn",
]  # fmt: skip


@dataclass(frozen=True)
class Op:
    """Base of all ops: writes ``out``. Operands are the fields of type Value, Weight and Rope."""

    out: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that this op reads, in field order."""
        operands = (getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "out")
        return tuple(operand for operand in operands if isinstance(operand, Value))

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weights that this op reads, in field order (rope factors are named by ``Rope.factors``)."""
        operands = (getattr(self, field.name) for field in dataclasses.fields(self))
        return tuple(operand for operand in operands if isinstance(operand, Weight))


@dataclass(frozen=True)
class Embed(Op):
    """out[t] = weight[row] · scale; weight ``(vocab, dim)``, or as many rows as its index can name.

    The row is the token's id, its position in the sequence (learned positions), or always the first (the
    type of the tokens of a single text, Devlin et al., arXiv 1810.04805).
    """

    weight: Weight
    scale: float = 1.0
    index: Literal["ids", "positions", "first"] = "ids"


@dataclass(frozen=True)
class RmsNorm(Op):
    """out = x / sqrt(mean(x²) + eps) · weight over each run of ``group`` elements (arXiv 1910.07467).

    ``weight`` is ``(group,)`` and shared by the runs: group is dim, or head_dim for a norm per head.
    """

    x: Value
    weight: Weight
    eps: float
    group: int


@dataclass(frozen=True)
class LayerNorm(Op):
    """out = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias (Ba et al., arXiv 1607.06450).

    The mean and the (biased) variance are over all of x; weight and bias are ``(dim,)``.
    """

    x: Value
    weight: Weight
    bias: Weight
    eps: float


@dataclass(frozen=True)
class Linear(Op):
    """out = x · weightᵀ + bias; weight ``(out, in)``, bias ``(out,)`` or None."""

    x: Value
    weight: Weight
    bias: Weight | None = None


@dataclass(frozen=True)
class Route(Op):
    """Chooses ``k`` experts for each token (Shazeer et al., arXiv 1701.06538, with softmax gates).

    p = softmax(x · weightᵀ), weight ``(experts, dim)``; chosen are the k highest, ties to the lowest id.
    out is ``(tokens, 2k)``: their ids in ascending order, then their gates: p, divided by the sum of the
    chosen ones where ``renormalize`` says so, times ``scale``. It always takes the generated-token path.
    """

    x: Value
    weight: Weight
    k: int
    renormalize: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class LinearRouted(Op):
    """out[t, j] = x[t] · weight[e]ᵀ for the j-th chosen expert e of token t; weight ``(experts, out, in)``.

    x has rows ``tokens``, or ``routed`` (then x[t, j]); out has rows ``routed``.
    """

    x: Value
    route: Value
    weight: Weight


@dataclass(frozen=True)
class Mix(Op):
    """out[t] = sum over j ascending of gate[t, j] · x[t, j]; x has rows ``routed``, out ``tokens``."""

    x: Value
    route: Value


@dataclass(frozen=True)
class Rotate(Op):
    """out = x with each head of ``head_dim`` elements turned by its token's position."""

    x: Value
    rope: Rope
    head_dim: int


@dataclass(frozen=True)
class Activate(Op):
    """out = f(x) elementwise: silu x·σ(x); gelu with erf; gelu_tanh its tanh form; sigmoid σ(x)."""

    x: Value
    kind: Literal["silu", "gelu", "gelu_tanh", "sigmoid"]


@dataclass(frozen=True)
class Mul(Op):
    """out = a · b elementwise."""

    a: Value
    b: Value


@dataclass(frozen=True)
class Add(Op):
    """out = a + b elementwise."""

    a: Value
    b: Value


@dataclass(frozen=True)
class Scale(Op):
    """out = x · factor."""

    x: Value
    factor: float


@dataclass(frozen=True)
class Slice(Op):
    """Of each ``period`` elements of x, those from ``start`` on; out is ``(rows, x.dim / period · size)``.

    It takes apart what a file holds as one matrix: period is x.dim, or the width of one head's share.
    """

    x: Value
    start: int
    size: int
    period: int


@dataclass(frozen=True)
class Attention(Op):
    """Stores k and v of the batch's tokens in the cache, then attends (arXiv 1706.03762).

    q and out ``(tokens, n_heads · head_dim)``; k, v ``(tokens, n_kv_heads · head_dim)``; query head h reads
    K/V head h // (n_heads / n_kv_heads). Scores are ``scale · q·k``, then, if there is a cap,
    ``soft_cap · tanh(score / soft_cap)``, then the mask. ``sinks`` ``(n_heads,)`` are scores that join each
    head's softmax without a value. ``cache`` is a cache group of the graph, ``layer`` an index inside it.
    """

    q: Value
    k: Value
    v: Value
    cache: int
    layer: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    mask: Mask = field(default_factory=Causal)
    soft_cap: float | None = None
    sinks: Weight | None = None


@dataclass(frozen=True)
class L2Norm(Op):
    """out = x / sqrt(sum(x²) + eps) over each run of ``group`` elements."""

    x: Value
    eps: float
    group: int


@dataclass(frozen=True)
class CausalConv(Op):
    """A convolution of each element over its token and the ones before: causal, depthwise, without bias.

    out[t, c] = sum over j of weight[c, j] · x[t - taps + 1 + j, c]; weight ``(channels, taps)``; before
    position 0 every x is 0. Its state, ``layer`` of the group ``cache``, is the last taps - 1 rows of x.
    """

    x: Value
    weight: Weight
    cache: int
    layer: int


@dataclass(frozen=True)
class Decay(Op):
    """out = exp(rate · log(1 + exp(x + bias))): what a state keeps over one token (Mamba, arXiv 2312.00752).

    ``rate`` and ``bias`` are ``(dim,)``; rates are below 0.
    """

    x: Value
    rate: Weight
    bias: Weight


@dataclass(frozen=True)
class DeltaRule(Op):
    """The gated delta rule (Yang et al., arXiv 2412.06464, equation 10), token by token.

    Each value head has a state S ``(k_dim, v_dim)``, 0 before position 0. A token first multiplies it by its
    ``decay``, then adds k · (beta · (v - kᵀS)), and reads ``scale`` · qᵀS. q and k are ``(tokens, n_k_heads ·
    k_dim)``; v and out ``(tokens, n_v_heads · v_dim)``; decay and beta ``(tokens, n_v_heads)``. Value head h
    has q and k of head h % n_k_heads where ``tiled``, else of head h // (n_v_heads / n_k_heads). S is
    ``layer`` of the group ``cache``.
    """

    q: Value
    k: Value
    v: Value
    decay: Value
    beta: Value
    cache: int
    layer: int
    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    scale: float
    tiled: bool


@dataclass(frozen=True)
class Logits(Op):
    """out[r] = x[logits_rows[r]] · weightᵀ · scale; weight ``(vocab, dim)``; out has rows ``outputs``.

    With a ``soft_cap`` the scaled logits become soft_cap · tanh(logits / soft_cap).
    """

    x: Value
    weight: Weight
    scale: float = 1.0
    soft_cap: float | None = None


@dataclass(frozen=True)
class Hidden(Op):
    """out[r] = x[logits_rows[r]]: the rows that an embedding model gives; out has rows ``outputs``."""

    x: Value


@dataclass(frozen=True)
class CacheGroup:
    """Layers whose cache has one shape and one lifetime: full attention, a window, or a recurrent state.

    A state has n_kv_heads rows of head_dim float32 numbers in each layer. A page of such a group holds the
    states as they are after the last token that ran in its positions: the next token reads the page of the
    token before it and writes that of its own. It is a window of 2; the pages that it leaves behind are
    snapshots. Between the first and the last token of a batch pages may be absent: no snapshot is taken.
    """

    kind: Literal["full", "window", "state"]
    n_layers: int
    n_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class Graph:
    """A model for one batch of tokens. ``outputs`` names what it returns (``logits`` or ``hidden``),
    ``weights`` what it reads."""

    architecture: str
    ops: tuple[Op, ...]
    values: tuple[Value, ...]  # values[v.id] is v
    caches: tuple[CacheGroup, ...]
    outputs: dict[str, Value]
    weights: dict[str, Weight]  # by tensor name, rope factors included
    context_length: int
    vocab_size: int
    dim: int

    @property
    def output(self) -> Value:
        """What a program returns: ``logits`` of a generator, ``hidden`` rows of an embedding model."""
        return next(iter(self.outputs.values()))

    @cached_property
    def whole_input(self) -> bool:
        """Whether a token sees what follows it, so that a sequence runs in one step, whole or not at all."""
        return any(isinstance(op, Attention) and isinstance(op.mask, Bidirectional) for op in self.ops)

    def describe(self) -> str:
        """A text dump, one line per op, for reading and for comparing two graphs."""
        from rase.graph.describe import describe

        return describe(self)
