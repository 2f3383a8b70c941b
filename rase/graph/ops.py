"""The op vocabulary: what a model computes, as typed ops over float32 buffers.

A ``Graph`` is a flat list of ops in execution order. Every op writes one new ``Value`` (static single
assignment), so a backend is free to reuse buffers, to fuse neighbours and to drop what nothing reads.
Token, row and sequence counts are symbolic (``rows``); every other dimension is fixed. An op that has not
been invented yet is one more dataclass here: a backend looks ops up by type and refuses unknown ones by name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

__all__ = [
    "Activate", "Add", "Attention", "Bidirectional", "CacheGroup", "Causal", "Embed", "Graph", "Hidden",
    "LayerNorm", "Linear", "LinearRouted", "Logits", "Mask", "Mix", "Mul", "Op", "RmsNorm", "Rope", "Rotate",
    "Route", "Scale", "Slice", "Value", "Weight", "Window", "Yarn",
]  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A float32 buffer ``(rows, dim)``: one row per token of the batch, or one per row that wants output.

    ``routed`` rows are one per token and chosen expert: k for each token, in ascending order of the expert.
    """

    id: int
    rows: Literal["tokens", "outputs", "routed"]
    dim: int


@dataclass(frozen=True)
class Weight:
    """A tensor of the file. ``axes`` names each dimension of ``shape``; a matrix is ``(out, in)``.

    Names in use: vocab, dim, heads (n_heads · head_dim), kv_heads (n_kv_heads · head_dim), hidden, head_dim,
    n_heads, rope, experts. Tensor parallelism and adapters rewrite a graph by these names. ``parts`` names
    the tensors of a stack that the file holds one by one, each of shape ``shape[1:]``.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Yarn:
    """Frequency interpolation by parts (Peng et al., YaRN, arXiv 2309.00071, section 3.2).

    Pair i of a rotary embedding of n elements keeps its frequency where it turns at least ``beta_fast``
    times within ``original_context`` positions, is divided by ``factor`` where it turns at most ``beta_slow``
    times, and is mixed linearly in i in between. Cosine and sine are multiplied by 1 + 0.1 · ln(factor).
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., arXiv 2104.09864) of the first ``n_dims`` elements of each head.

    Pair i turns by ``(position / scale) · theta^(-2i / n_dims) / factor[i]``. Pairs are ``neighbour``
    (2i, 2i+1) or ``half`` (i, i + n_dims/2). ``factors`` names a tensor ``(n_dims/2,)``; without it every
    factor is 1. ``yarn`` changes the frequencies before the factors divide them. ``attn_factor`` multiplies
    cosine and sine, beside YaRN's own factor. Elements from ``n_dims`` on pass unchanged.
    """

    theta: float
    n_dims: int
    pairing: Literal["neighbour", "half"]
    scale: float = 1.0
    factors: str | None = None
    attn_factor: float = 1.0
    yarn: Yarn | None = None


@dataclass(frozen=True)
class Causal:
    """A token sees itself and everything before it."""


@dataclass(frozen=True)
class Window:
    """A token sees ``width`` positions, itself included: keys at distance >= width are masked."""

    width: int


@dataclass(frozen=True)
class Bidirectional:
    """Every token sees the whole sequence; such a graph runs its input in one step."""


Mask = Causal | Window | Bidirectional


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
    """out = f(x) elementwise: silu x·σ(x); gelu with erf; gelu_tanh its tanh form."""

    x: Value
    kind: Literal["silu", "gelu", "gelu_tanh"]


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
    mask: Mask = Causal()
    soft_cap: float | None = None
    sinks: Weight | None = None


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
    """Layers whose cache has one shape and one lifetime: full attention, a window, or a recurrent state."""

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
