"""BERT (arXiv 1810.04805) and the sentence encoders made of it: norms after each sum, learned positions.

Every token sees the whole text. All tokens are of the first type, as those of a single text are.
"""

from __future__ import annotations

from rase.graph.builder import GraphBuilder
from rase.graph.ops import Bidirectional
from rase.models.config import ModelConfig, blk

NAMES = ("bert",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None
ENCODER = True


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> hidden rows (rows, dim)."""
    g.sizes["positions"] = cfg.keys.integer("context_length")

    h = g.add(g.embed("token_embd"), g.embed("position_embd", index="positions"))  # (t, dim)
    if g.has("token_types"):
        g.sizes["token_types"] = g.tensors["token_types.weight"].shape[0]
        h = g.add(h, g.embed("token_types", index="first"))
    h = g.layer_norm(h, "token_embd_norm", cfg.norm_eps)
    for i in range(cfg.n_layers):
        q, k, v = g.linear(h, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=Bidirectional())
        h = g.add(h, g.linear(x, blk(i, "attn_output")))
        h = g.layer_norm(h, blk(i, "attn_output_norm"), cfg.norm_eps)

        x = g.linear(g.gelu(g.linear(h, blk(i, "ffn_up"))), blk(i, "ffn_down"))
        h = g.layer_norm(g.add(h, x), blk(i, "layer_output_norm"), cfg.norm_eps)

    g.hidden(h)
