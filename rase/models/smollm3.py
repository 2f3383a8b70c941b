"""SmolLM3 (Hugging Face, 2025): Llama with rotary embedding in all but every fourth layer (arXiv 2501.18795).

No key of the file says which layers. Query and key rows are permuted so that rotary pairs are neighbours.
"""

from __future__ import annotations

from typing import Any

from rase.checkpoint.config import Config
from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, decoder
from rase.models.config import ModelConfig

NAMES = ("smollm3",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = "chatml"


def _more(config: Config) -> dict[str, Any]:
    """Refuse other layers without rotary embedding than those that the graph has."""
    layers = range(config.integer("num_hidden_layers"))
    config.expect("no_rope_layers", [int((i + 1) % 4 != 0) for i in layers])
    return {}


CHECKPOINTS = (
    Checkpoint("SmolLM3ForCausalLM", pairs="neighbour", more=_more,
               defaults={"use_sliding_window": False, "tie_word_embeddings": True}),
)  # fmt: skip


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: logits (rows, vocab_size)."""
    rope = cfg.rope("neighbour")
    decoder(cfg, g, lambda x, i: attention(cfg, g, x, i, rope if (i + 1) % 4 else None))
