"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama with fused matrices and rotary halves.

q, k and v are one matrix; the gate and the up projection are one, gate first. Long-context files carry two
sets of rotary factors.
"""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.models.config import ModelConfig, blk

NAMES = ("phi3",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None
CHECKPOINTS = (Checkpoint("Phi3ForCausalLM", layer={"mlp.gate_up_proj": "ffn_up"}),)


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    rope = cfg.rope("half", factors=cfg.long_rope(g.has))
    if rope.factors is not None:
        g.leave("rope_factors_short", "rope_factors_long")
    heads, kv_heads = g.sizes["heads"], g.sizes["kv_heads"]
    g.sizes |= {"qkv": heads + 2 * kv_heads, "gate_up": 2 * cfg.hidden_dim}

    h = g.embed("token_embd")  # (t, dim)
    for i in range(cfg.n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        q, k, v = g.split(g.linear(x, blk(i, "attn_qkv")), heads, kv_heads, kv_heads)
        q = g.rotate(q, rope, cfg.head_dim)
        k = g.rotate(k, rope, cfg.head_dim)
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=cfg.mask)
        h = g.add(h, g.linear(x, blk(i, "attn_output")))

        x = g.linear(
            g.rms_norm(h, blk(i, "ffn_norm"), cfg.norm_eps), blk(i, "ffn_up"), axes=("gate_up", "dim")
        )
        gate, up = g.split(x, cfg.hidden_dim, cfg.hidden_dim)  # (t, hidden_dim)
        h = g.add(h, g.linear(g.mul(g.silu(gate), up), blk(i, "ffn_down")))

    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd")
