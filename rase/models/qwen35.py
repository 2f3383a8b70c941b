"""Qwen3.5 and 3.6, dense, text (Qwen, 2026): of four layers three have a state, the gated delta rule.

What files of this architecture hold, and no key says: ``ssm_a`` is already -exp(A_log), norm weights already
hold the + 1 of the model's code (but for ``ssm_norm``, which has none), value heads lie tiled over the key
heads (head h has key head h % n_key_heads), and ``attn_q`` holds for each head its query, then its gate.
Positions of text are alike on all axes of the rotary embedding, so that its sections change nothing. Layers
that predict further tokens (``nextn``) follow the others and are not run.
"""

from __future__ import annotations

from typing import Any

from rase.checkpoint import delta_net
from rase.checkpoint.config import Config, rope_tables
from rase.checkpoint.mapping import Checkpoint
from rase.graph.builder import GraphBuilder
from rase.graph.ops import Value
from rase.models.blocks import logits, swiglu
from rase.models.config import ModelConfig, blk

NAMES = ("qwen35",)
ALIASES: dict[str, str] = {}
CHAT_TEMPLATE = "chatml"


def _more(config: Config) -> dict[str, Any]:
    sections = rope_tables(config)[0].get("mrope_section", [11, 11, 10])
    if not isinstance(sections, list) or not all(type(one) is int and 0 <= one < 2**16 for one in sections):
        raise config.bad("mrope_section", "whole numbers", sections)
    return delta_net.layer_kinds(config) | {"rope.dimension_sections": (sections + [0] * 4)[:4]}


CHECKPOINTS = tuple(
    Checkpoint(
        name, keys=delta_net.KEYS, norm_offset=1.0,
        layer={**delta_net.NAMES, "post_attention_layernorm": "post_attention_norm"},
        parts=delta_net.PARTS, more=_more,
        defaults={"partial_rotary_factor": 0.25, "full_attention_interval": 4},
        expect={"attn_output_gate": True},
    )
    for name in ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
)  # fmt: skip

_L2_EPS = 1e-6  # of queries and keys, in the model's code; not the epsilon of its norms


def build(cfg: ModelConfig, g: GraphBuilder) -> None:
    """The forward pass over t tokens: h (t, dim) -> logits (rows, vocab_size)."""
    cfg.keys.pass_over("rope.dimension_sections")
    n_layers = cfg.n_layers - cfg.keys.integer("nextn_predict_layers", 0, least=0)
    for i in range(n_layers, cfg.n_layers):
        g.leave_layer(i)
    recurrent = cfg.keys.layer_flags("full_attention_interval", cfg.n_layers, 4)
    recurrent = cfg.keys.layer_flags("attention.recurrent_layers", cfg.n_layers, recurrent)

    h = g.embed("token_embd")  # (t, dim)
    for i in range(n_layers):
        x = g.rms_norm(h, blk(i, "attn_norm"), cfg.norm_eps)
        h = g.add(h, _delta_net(cfg, g, x, i) if recurrent[i] else _attention(cfg, g, x, i))

        x = g.rms_norm(h, blk(i, "post_attention_norm"), cfg.norm_eps)
        h = g.add(h, swiglu(g, x, i))

    logits(cfg, g, h)


def _attention(cfg: ModelConfig, g: GraphBuilder, x: Value, i: int) -> Value:
    """Attention whose output a gate multiplies (arXiv 2505.06708): (t, dim) -> (t, dim)."""
    head = cfg.head_dim
    g.sizes["gated_heads"] = 2 * cfg.n_heads * head
    q = g.linear(x, blk(i, "attn_q"), axes=("gated_heads", "dim"))
    k, v = g.linear(x, blk(i, "attn_k"), blk(i, "attn_v"))
    q, gate = g.split(q, head, head, period=2 * head)  # (t, heads · head_dim)
    q = g.rms_norm(q, blk(i, "attn_q_norm"), cfg.norm_eps, group=head)
    k = g.rms_norm(k, blk(i, "attn_k_norm"), cfg.norm_eps, group=head)
    rope = cfg.rope("half")
    q, k = g.rotate(q, rope, head), g.rotate(k, rope, head)
    x = g.attention(q, k, v, head_dim=head, scale=cfg.attn_scale, mask=cfg.mask)
    out: Value = g.linear(g.mul(x, g.sigmoid(gate)), blk(i, "attn_output"))
    return out


def _delta_net(cfg: ModelConfig, g: GraphBuilder, x: Value, i: int) -> Value:
    """Gated DeltaNet (arXiv 2412.06464): (t, dim) -> (t, dim)."""
    keys = cfg.keys
    n_k_heads, n_v_heads = keys.integer("ssm.group_count"), keys.integer("ssm.time_step_rank")
    k_dim, inner = keys.integer("ssm.state_size"), keys.integer("ssm.inner_size")
    if n_v_heads % n_k_heads:
        raise keys.bad("ssm.time_step_rank", f"a multiple of group_count, {n_k_heads}", n_v_heads)
    if inner % n_v_heads:
        raise keys.bad("ssm.inner_size", f"a multiple of time_step_rank, {n_v_heads}", inner)
    width, v_dim = n_k_heads * k_dim, inner // n_v_heads
    g.sizes |= {"qkv": 2 * width + inner, "channels": 2 * width + inner, "inner": inner,
                "v_heads": n_v_heads, "taps": keys.integer("ssm.conv_kernel", least=2)}  # fmt: skip

    mixed = g.linear(x, blk(i, "attn_qkv"))
    z = g.linear(x, blk(i, "attn_gate"), axes=("inner", "dim"))
    alpha, beta = g.linear(x, blk(i, "ssm_alpha"), blk(i, "ssm_beta"), axes=("v_heads", "dim"))
    mixed = g.silu(g.causal_conv(mixed, blk(i, "ssm_conv1d")))
    q, k, v = g.split(mixed, width, width, inner)
    q, k = g.l2_norm(q, _L2_EPS, k_dim), g.l2_norm(k, _L2_EPS, k_dim)
    decay = g.decay(alpha, blk(i, "ssm_a"), blk(i, "ssm_dt.bias"))
    x = g.delta_rule(q, k, v, decay, g.sigmoid(beta), k_dim=k_dim, v_dim=v_dim, tiled=True)
    x = g.rms_norm(x, blk(i, "ssm_norm"), cfg.norm_eps, group=v_dim)  # (t, v_heads · v_dim)
    out: Value = g.linear(g.mul(g.silu(z), x), blk(i, "ssm_out"), axes=("dim", "inner"))
    return out
