"""Qwen3, dense (arXiv 2505.09388): Llama with a norm on each query and key head, and rotary halves."""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, logits, swiglu
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
        h = g.add(h, attention(cfg, g, x, i, rope, head_norms=True))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        h = g.add(h, swiglu(g, x, i))

    logits(cfg, g, h)
