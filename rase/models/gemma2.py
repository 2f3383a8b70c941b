"""Gemma 2 (arXiv 2408.00118): Gemma 3's norms without those of queries and keys, and two soft caps.

Every other layer sees a window, the first among them. Norm weights in files already hold the + 1 of the
paper's code. What older files leave out are the paper's values: both caps and the window.
"""

from __future__ import annotations

from typing import Any

from rase.checkpoint.config import Config
from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Causal, Window
from rase.models.config import ModelConfig, blk
from rase.models.gemma import ACTIVATION, NORMS, attention_scale

NAMES = ("gemma2",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None


def _more(config: Config) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return attention_scale(config) | {cap: config.number(cap, 0.0) for cap in caps}


CHECKPOINTS = (
    Checkpoint("Gemma2ForCausalLM", layer=NORMS, norm_offset=1.0, expect=ACTIVATION, more=_more, period=2,
               defaults={"tie_word_embeddings": True}),
)  # fmt: skip


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    local = cfg.keys.layer_flags("attention.sliding_window_pattern", cfg.n_layers, 2)
    rope = cfg.rope("half")
    # The 27B model has 46 layers, and scores scaled by its width per head; no key of its files says so.
    scale = cfg.attn_scale if cfg.n_layers != 46 else (cfg.dim / cfg.n_heads) ** -0.5
    cap = cfg.keys.optional_number("attn_logit_softcapping", 50.0)

    h = g.embed("token_embd", scale=cfg.dim**0.5)  # (t, dim)
    for i in range(cfg.n_layers):
        mask = Window(cfg.window or 4096) if local[i] else Causal()
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        q, k, v = g.linear(x, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        q = g.rotate(q, rope, cfg.head_dim)
        k = g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=scale, mask=mask, soft_cap=cap)
        x = g.rms_norm(g.linear(x, blk(i, "attn_output")), blk(i, "post_attention_norm"), cfg.norm_eps)
        h = g.add(h, x)

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        gate, up = g.linear(x, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        x = g.linear(g.mul(g.gelu(gate, tanh=True), up), blk(i, "ffn_down"))
        h = g.add(h, g.rms_norm(x, blk(i, "post_ffw_norm"), cfg.norm_eps))

    cap = cfg.keys.optional_number("final_logit_softcapping", 30.0)
    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd", soft_cap=cap)
