"""Qwen3 with a mixture of experts in every layer (arXiv 2505.09388): all but the feed-forward is Qwen3."""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, decoder
from rase.models.config import ModelConfig
from rase.models.experts import mixture

NAMES = ("qwen3moe",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = "chatml"
CHECKPOINTS = (
    Checkpoint(
        "Qwen3MoeForCausalLM", layer={"mlp.gate": "ffn_gate_inp"},
        keys={"expert_count": "num_experts|num_local_experts", "expert_used_count": "num_experts_per_tok",
              "expert_feed_forward_length": "moe_intermediate_size"},
        defaults={"use_sliding_window": False, "norm_topk_prob": False},
        expect={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
)  # fmt: skip


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: logits (rows, vocab_size)."""
    rope = cfg.rope("half")
    decoder(
        cfg, g,
        lambda x, i: attention(cfg, g, x, i, rope, head_norms=True),
        lambda x, i: mixture(cfg, g, x, i),
    )  # fmt: skip
