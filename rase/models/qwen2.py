"""Qwen2 and Qwen2.5, dense (arXiv 2407.10671, 2412.15115): Llama with biases on q, k, v and rotary halves."""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, decoder
from rase.models.config import ModelConfig

NAMES = ("qwen2",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = "chatml"
CHECKPOINTS = (Checkpoint("Qwen2ForCausalLM", defaults={"use_sliding_window": False}),)


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: logits (rows, vocab_size)."""
    rope = cfg.rope("half")
    decoder(cfg, g, lambda x, i: attention(cfg, g, x, i, rope))
