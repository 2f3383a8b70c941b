"""Gemma 3, text (arXiv 2503.19786): norms around attention and feed-forward, a window in five of six layers.

Local layers have a rotary base of their own and no scaling. Embeddings are multiplied by sqrt(dim). Norm
weights in files already hold the + 1 of the paper's code.
"""

from __future__ import annotations

from rase.graph.builder import GraphBuilder
from rase.graph.ops import Causal
from rase.models.config import ModelConfig, blk

NAMES = ("gemma3",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    local = cfg.keys.layer_flags("attention.sliding_window_pattern", cfg.n_layers, 6)
    wide = cfg.rope("half")
    near = cfg.rope("half", theta=cfg.keys.number("rope.freq_base_swa", 10000.0), scaled=False)
    # The 27B model has 62 layers, and scores scaled by its width per head; no key of its files says so.
    scale = cfg.attn_scale if cfg.n_layers != 62 else (cfg.dim / cfg.n_heads) ** -0.5

    h = g.embed("token_embd", scale=cfg.dim**0.5)  # (t, dim)
    for i in range(cfg.n_layers):
        rope, mask = (near, cfg.mask) if local[i] else (wide, Causal())
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        q, k, v = g.linear(x, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        q = g.rms_norm(q, blk(i, "attn_q_norm"), cfg.norm_eps, group=cfg.head_dim)
        k = g.rms_norm(k, blk(i, "attn_k_norm"), cfg.norm_eps, group=cfg.head_dim)
        q = g.rotate(q, rope, cfg.head_dim)
        k = g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=scale, mask=mask)
        x = g.rms_norm(g.linear(x, blk(i, "attn_output")), blk(i, "post_attention_norm"), cfg.norm_eps)
        h = g.add(h, x)

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        gate, up = g.linear(x, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        x = g.linear(g.mul(g.gelu(gate, tanh=True), up), blk(i, "ffn_down"))
        h = g.add(h, g.rms_norm(x, blk(i, "post_ffw_norm"), cfg.norm_eps))

    cap = cfg.keys.optional_number("final_logit_softcapping")
    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd", soft_cap=cap)
