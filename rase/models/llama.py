"""Llama 2 and 3 (arXiv 2307.09288, 2407.21783), Mistral (2310.06825) and Mixtral (2401.04088).

Files of this architecture hold query and key rows permuted so that rotary pairs are neighbours. Llama 3.1's
frequency factors are the tensor ``rope_freqs``; Mistral's sliding window is honoured where a file names one.
"""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.blocks import attention, decoder
from rase.models.config import ModelConfig
from rase.models.experts import mixture

NAMES = ("llama",)
ALIASES = {"llama2": "mistral", "llama3": "llama3", "mistral": "mistral", "mixtral": "mistral"}
CHAT_TEMPLATE = "mistral"
CHECKPOINTS = (
    Checkpoint("LlamaForCausalLM", pairs="neighbour"),
    Checkpoint("MistralForCausalLM", pairs="neighbour", defaults={"sliding_window": 4096}),
    Checkpoint(
        "MixtralForCausalLM", pairs="neighbour",
        keys={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        layer={"block_sparse_moe.gate": "ffn_gate_inp"},
        experts=("block_sparse_moe.experts", {
            "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}),
    ),
)  # fmt: skip


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: logits (rows, vocab_size)."""
    factors = "rope_freqs" if g.has("rope_freqs") else None
    rope = cfg.rope("neighbour", factors=factors)
    feed = (lambda x, i: mixture(cfg, g, x, i)) if cfg.n_experts else None
    decoder(cfg, g, lambda x, i: attention(cfg, g, x, i, rope), feed)
