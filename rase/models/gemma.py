"""What folders of Gemma 2 and Gemma 3 share: the names of four norms, and what they leave unsaid."""

from __future__ import annotations

from typing import Any

from rase.checkpoint.config import Config

__all__ = ["ACTIVATION", "NORMS", "attention_scale"]

NORMS = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
ACTIVATION = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def attention_scale(config: Config) -> dict[str, Any]:
    """What scores are multiplied by, where the width of a head does not say it."""
    scalar = config.number("query_pre_attn_scalar")
    return {"attention.scale": None if scalar == config.head_dim else scalar**-0.5}
