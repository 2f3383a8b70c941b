"""The feed-forward layer as a mixture of experts, as Mixtral and Qwen3 share it."""

from __future__ import annotations

from rase.graph.builder import GraphBuilder
from rase.graph.ops import Value
from rase.models.config import ModelConfig, blk

__all__ = ["mixture"]


def mixture(cfg: ModelConfig, g: GraphBuilder, x: Value, layer: int) -> Value:
    """SwiGLU by the experts of each token, summed by their gates (arXiv 2401.04088): (t, dim) -> (t, dim).

    The gates of the chosen experts are divided by their sum; no key of the files says so.
    """
    g.sizes |= {
        "experts": cfg.n_experts,
        "hidden": cfg.keys.integer("expert_feed_forward_length", cfg.hidden_dim),
    }
    k = cfg.keys.integer("expert_used_count")
    if k > cfg.n_experts:
        raise cfg.keys.bad("expert_used_count", f"at most expert_count, {cfg.n_experts}", k)
    for part in ("gate", "up", "down"):  # files of the first weeks of Mixtral hold one matrix per expert
        experts = [blk(layer, f"ffn_{part}.{e}") for e in range(cfg.n_experts)]
        g.stack(blk(layer, f"ffn_{part}_exps"), experts)
    scale = cfg.keys.optional_number("expert_weights_scale") or 1.0
    route = g.route(x, blk(layer, "ffn_gate_inp"), k, scale=scale)
    gate, up = g.linear_routed(x, route, blk(layer, "ffn_gate_exps"), blk(layer, "ffn_up_exps"))
    return g.mix(g.linear_routed(g.mul(g.silu(gate), up), route, blk(layer, "ffn_down_exps")), route)
