"""What ops have operands of: values, weights, rotary embeddings and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Bidirectional", "Causal", "Mask", "Rope", "Value", "Weight", "Window", "Yarn"]


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
    n_heads, rope, experts, channels, taps. Tensor parallelism and adapters rewrite a graph by these names.
    ``parts`` names the tensors of a stack that the file holds one by one, each of shape ``shape[1:]``.
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
