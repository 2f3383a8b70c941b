"""Granite 3 and 4 dense (IBM, 2024): Llama with four multipliers that the metadata give.

Embeddings, residual branches and scores are multiplied, logits are divided.
"""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.config import ModelConfig, blk

NAMES = ("granite",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None
CHECKPOINTS = (
    Checkpoint(
        "GraniteForCausalLM", pairs="neighbour",
        keys={"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
              "attention.scale": "attention_multiplier", "logit_scale": "logits_scaling"},
    ),
)  # fmt: skip


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    rope = cfg.rope("neighbour")
    embedding = cfg.keys.optional_number("embedding_scale") or 1.0
    residual = cfg.keys.optional_number("residual_scale") or 1.0
    divisor = cfg.keys.optional_number("logit_scale") or 1.0

    h = g.embed("token_embd", scale=embedding)  # (t, dim)
    for i in range(cfg.n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        q, k, v = g.linear(x, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        q = g.rotate(q, rope, cfg.head_dim)
        k = g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=cfg.mask)
        h = g.add(h, g.scale(g.linear(x, blk(i, "attn_output")), residual))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        gate, up = g.linear(x, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        h = g.add(h, g.scale(g.linear(g.mul(g.silu(gate), up), blk(i, "ffn_down")), residual))

    x = g.rms_norm(h, "output_norm", cfg.norm_eps)
    g.logits(x, "output", tied="token_embd", scale=1 / divisor)
