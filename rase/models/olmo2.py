"""OLMo 2 and OLMo 3 (arXiv 2501.00656, 2512.13961): norms after attention and feed-forward, none before.

Queries and keys are normalized over all heads at once. OLMo 3 has a sliding window in all but every fourth
layer; those layers do not take part in the scaling of the rotary embedding.
"""

from __future__ import annotations

from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Causal
from rase.models.config import ModelConfig, blk

NAMES = ("olmo2",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = None
_NORMS = {
    "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
CHECKPOINTS = (
    Checkpoint("Olmo2ForCausalLM", layer=_NORMS),
    Checkpoint("Olmo3ForCausalLM", layer=_NORMS, period=4),
)


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    local = cfg.keys.layer_flags("attention.sliding_window_pattern", cfg.n_layers, 4)
    base = cfg.keys.number("rope.freq_base_swa", cfg.rope_theta)
    wide, near = cfg.rope("half"), cfg.rope("half", theta=base, scaled=False)

    h = g.embed("token_embd")  # (t, dim)
    for i in range(cfg.n_layers):
        windowed = cfg.window is not None and local[i]
        q, k, v = g.linear(h, blk(i, "attn_q"), blk(i, "attn_k"), blk(i, "attn_v"))  # (t, heads · head_dim)
        q = g.rms_norm(q, blk(i, "attn_q_norm"), cfg.norm_eps)
        k = g.rms_norm(k, blk(i, "attn_k_norm"), cfg.norm_eps)
        q = g.rotate(q, near if windowed else wide, cfg.head_dim)
        k = g.rotate(k, near if windowed else wide, cfg.head_dim)
        mask = cfg.mask if windowed else Causal()
        x = g.attention(q, k, v, head_dim=cfg.head_dim, scale=cfg.attn_scale, mask=mask)
        x = g.rms_norm(g.linear(x, blk(i, "attn_output")), blk(i, "post_attention_norm"), cfg.norm_eps)
        h = g.add(h, x)

        gate, up = g.linear(h, blk(i, "ffn_gate"), blk(i, "ffn_up"))  # (t, hidden_dim)
        x = g.linear(g.mul(g.silu(gate), up), blk(i, "ffn_down"))
        h = g.add(h, g.rms_norm(x, blk(i, "post_ffw_norm"), cfg.norm_eps))

    g.logits(g.rms_norm(h, "output_norm", cfg.norm_eps), "output", tied="token_embd")
