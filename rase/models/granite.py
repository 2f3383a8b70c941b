"""Granite 3 and 4 dense (IBM, 2024): Llama with four multipliers that the metadata give.

Embeddings, residual branches and scores are multiplied, logits are divided.
"""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, swiglu
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
        h = g.add(h, g.scale(attention(cfg, g, x, i, rope), residual))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        h = g.add(h, g.scale(swiglu(g, x, i), residual))

    x = g.rms_norm(h, "output_norm", cfg.norm_eps)
    g.logits(x, "output", tied="token_embd", scale=1 / divisor)
