"""The blocks that decoders after Llama share (arXiv 2307.09288), and how the shared ones differ.

An architecture's file says in which order they stand, and what it has of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from rase.graph.builder import GraphBuilder
from rase.graph.ops import Rope, Value
from rase.models.config import ModelConfig, blk

__all__ = ["attention", "decoder", "logits", "swiglu"]

Part = Callable[[Value, int], Value]
"""Gets (t, dim) and the number of the layer, and gives (t, dim)."""


def decoder(cfg: ModelConfig, g: GraphBuilder, attend: Part, feed: Part | None = None) -> None:
    """The forward pass over t tokens: in each layer a norm and ``attend``, a norm and ``feed``, each added.

    ``feed`` is SwiGLU where an architecture has none of its own. Ends in logits (rows, vocab_size).
    """
    h = g.embed("token_embd")  # (t, dim)
    for i in range(cfg.n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        h = g.add(h, attend(x, i))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        h = g.add(h, swiglu(g, x, i) if feed is None else feed(x, i))

    logits(cfg, g, h)


def attention(
    cfg: ModelConfig, g: GraphBuilder, x: Value, layer: int, rope: Rope | None, *, head_norms: bool = False
) -> Value:
    """Grouped-query attention (arXiv 2305.13245): (t, dim) -> (t, dim).

    ``head_norms`` normalizes each query and key head, as Qwen3 does; without ``rope`` positions do not count.
    """
    q, k, v = g.linear(
        x, blk(layer, "attn_q"), blk(layer, "attn_k"), blk(layer, "attn_v")
    )  # (t, heads · head_dim)
    if head_norms:
        q = g.rms_norm(q, blk(layer, "attn_q_norm"), cfg.norm_eps, group=cfg.head_dim)
        k = g.rms_norm(k, blk(layer, "attn_k_norm"), cfg.norm_eps, group=cfg.head_dim)
    if rope is not None:
        q, k = g.rotate(q, rope, cfg.head_dim), g.rotate(k, rope, cfg.head_dim)
    x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=cfg.mask)
    out: Value = g.linear(x, blk(layer, "attn_output"))
    return out


def swiglu(g: GraphBuilder, x: Value, layer: int) -> Value:
    """The gated feed-forward layer (arXiv 2002.05202): (t, dim) -> (t, dim)."""
    gate, up = g.linear(x, blk(layer, "ffn_gate"), blk(layer, "ffn_up"))  # (t, hidden_dim)
    out: Value = g.linear(g.mul(g.silu(gate), up), blk(layer, "ffn_down"))
    return out


def logits(cfg: ModelConfig, g: GraphBuilder, h: Value) -> None:
    """The last norm, and the output matrix or that of the embeddings."""
    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd")
