"""Gemma 3, text (arXiv 2503.19786): norms around attention and feed-forward, a window in five of six layers.

Local layers have a rotary base of their own and no scaling. Embeddings are multiplied by sqrt(dim). Norm
weights in files already hold the + 1 of the paper's code.
"""

from __future__ import annotations

from typing import Any

from rase.checkpoint.config import Config
from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Causal
from rase.models.config import ModelConfig, blk
from rase.models.gemma import ACTIVATION, NORMS, attention_scale

NAMES = ("gemma3",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None


def _more(config: Config) -> dict[str, Any]:
    return attention_scale(config) | {
        "final_logit_softcapping": config.number("final_logit_softcapping", 0.0)
    }


_TEXT: dict[str, Any] = {
    "layer": NORMS, "norm_offset": 1.0, "expect": ACTIVATION | {"attn_logit_softcapping": None},
    "more": _more, "period": 6,
    "defaults": {  # what the text part of a folder leaves out
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": True,
    },
}  # fmt: skip
CHECKPOINTS = (
    Checkpoint("Gemma3ForCausalLM", **_TEXT),
    Checkpoint("Gemma3ForConditionalGeneration", **_TEXT),
)


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    local = cfg.keys.layer_flags("attention.sliding_window_pattern", cfg.n_layers, 6)
    wide = cfg.rope("half")
    base = cfg.keys.number("rope.local.freq_base", 10000.0)  # as Ollama's converter spells the next key
    near = cfg.rope("half", theta=cfg.keys.number("rope.freq_base_swa", base), scaled=False)
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
