"""Nomic BERT (arXiv 2402.01613): BERT with rotary halves, SwiGLU, and linears without biases."""

from __future__ import annotations

from rase.graph.builder import GraphBuilder
from rase.graph.ops import Bidirectional
from rase.models.config import ModelConfig, blk

NAMES = ("nomic-bert",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None
ENCODER = True


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> hidden rows (rows, dim)."""
    rope = cfg.rope("half")
    heads = g.sizes["heads"]
    g.sizes["qkv"] = 3 * heads

    h = g.embed("token_embd")  # (t, dim)
    if g.has("token_types"):
        g.sizes["token_types"] = g.tensors["token_types.weight"].shape[0]
        h = g.add(h, g.embed("token_types", index="first"))
    h = g.layer_norm(h, "token_embd_norm", cfg.norm_eps)
    for i in range(cfg.n_layers):
        q, k, v = g.split(g.linear(h, blk(i, "attn_qkv")), heads, heads, heads)  # (t, heads · head_dim)
        q, k = g.rotate(q, rope, cfg.head_dim), g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=Bidirectional())
        h = g.add(h, g.linear(x, blk(i, "attn_output")))
        h = g.layer_norm(h, blk(i, "attn_output_norm"), cfg.norm_eps)

        gate, up = g.linear(h, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        x = g.linear(g.mul(g.silu(gate), up), blk(i, "ffn_down"))
        h = g.layer_norm(g.add(h, x), blk(i, "layer_output_norm"), cfg.norm_eps)

    g.hidden(h)
