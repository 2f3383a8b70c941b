"""Qwen3, dense (arXiv 2505.09388): Llama with a norm on each query and key head, and rotary halves."""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.config import ModelConfig, blk

NAMES = ("qwen3",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = "chatml"
CHECKPOINTS = (Checkpoint("Qwen3ForCausalLM", defaults={"use_sliding_window": False}),)


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    rope = cfg.rope("half")

    h = g.embed("token_embd")  # (t, dim)
    for i in range(cfg.n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        q, k, v = g.linear(x, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        q = g.rms_norm(q, blk(i, "attn_q_norm"), cfg.norm_eps, group=cfg.head_dim)
        k = g.rms_norm(k, blk(i, "attn_k_norm"), cfg.norm_eps, group=cfg.head_dim)
        q = g.rotate(q, rope, cfg.head_dim)
        k = g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=cfg.mask)
        h = g.add(h, g.linear(x, blk(i, "attn_output")))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        gate, up = g.linear(x, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        h = g.add(h, g.linear(g.mul(g.silu(gate), up), blk(i, "ffn_down")))

    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd")
