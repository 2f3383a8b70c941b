"""Llama 2 and 3 (arXiv 2307.09288, 2407.21783) and Mistral (arXiv 2310.06825).

Files of this architecture hold query and key rows permuted so that rotary pairs are neighbours. Llama 3.1's
frequency factors are the tensor ``rope_freqs``; Mistral's sliding window is honoured where a file names one.
"""

from __future__ import annotations

from rase.errors import UnsupportedArchitecture
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Rope
from rase.models.config import ModelConfig, blk

NAMES = ("llama",)
ALIASES = {"llama2": "mistral", "llama3": "llama3", "mistral": "mistral", "mixtral": "mistral"}
CHAT_TEMPLATE = "mistral"


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    if cfg.n_experts:
        raise UnsupportedArchitecture(
            f"Mixtral, a Llama with {cfg.n_experts} experts, is not supported yet",
            expected="llama.expert_count 0",
            found=str(cfg.n_experts),
            hint="Use a dense Llama or Mistral GGUF.",
        )
    factors = "rope_freqs" if g.has("rope_freqs") else None
    rope = Rope(cfg.rope_theta, cfg.rope_dim, "neighbour", scale=cfg.rope_scale, factors=factors)

    h = g.embed("token_embd")  # (t, dim)
    for i in range(cfg.n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        q, k, v = g.linear(x, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        q = g.rotate(q, rope, cfg.head_dim)
        k = g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, mask=cfg.mask)  # (t, n_heads · head_dim)
        h = g.add(h, g.linear(x, blk(i, "attn_output")))

        x = g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps)
        gate, up = g.linear(x, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        h = g.add(h, g.linear(g.mul(g.silu(gate), up), blk(i, "ffn_down")))

    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd")
