"""Qwen2 and Qwen2.5, dense (arXiv 2407.10671, 2412.15115): Llama with biases on q, k, v and rotary halves."""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, logits, swiglu
from rase.models.config import ModelConfig, blk

NAMES = ("qwen2",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = "chatml"
CHECKPOINTS = (Checkpoint("Qwen2ForCausalLM", defaults={"use_sliding_window": False}),)


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    rope = cfg.rope("half")

    h = g.embed("token_embd")  # (t, dim)
    for i in range(cfg.n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        h = g.add(h, attention(cfg, g, x, i, rope))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        h = g.add(h, swiglu(g, x, i))

    logits(cfg, g, h)
