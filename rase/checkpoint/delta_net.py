"""Gated delta-rule layers as folders hold them: value heads grouped by key head, and the logarithm of A.

GGUF files hold value heads tiled over the key heads (head h has key head h % n_key_heads), -exp(A_log), and a
convolution without its middle axis; all of these that are not matrices in float32 (llama.cpp `conversion`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rase.checkpoint.arrange import Computed, Part, Same, Tiled, tiled
from rase.checkpoint.config import Config

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo

__all__ = ["KEYS", "NAMES", "PARTS", "layer_kinds"]

KEYS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
}  # fmt: skip
NAMES = {
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}  # fmt: skip


def layer_kinds(config: Config) -> dict[str, Any]:
    """Which layers are recurrent, and how wide their values are together."""
    n_layers, types = config.integer("num_hidden_layers"), config.get("layer_types")
    kinds = ("full_attention", "linear_attention")
    if types is not None and not (
        isinstance(types, list) and len(types) == n_layers and all(kind in kinds for kind in types)
    ):
        raise config.bad("layer_types", f"{n_layers} of " + ", ".join(kinds), types)
    return {
        "ssm.inner_size": config.integer("linear_num_value_heads") * config.integer("linear_value_head_dim"),
        "full_attention_interval": config.integer("full_attention_interval"),
        "attention.recurrent_layers": types and [kind == kinds[1] for kind in types],
    }


def _part(
    *, wide: bool = True, after_keys: bool = False, axis: int = 0, compute: Callable[[Any], Any] | None = None
) -> Callable[[TensorInfo, Config], Part]:
    """What makes a tensor whose ``axis`` runs over the value heads, each ``wide`` or one element.

    ``after_keys``: behind the queries and keys. ``compute`` gets all values as float32. With other sizes than
    the configuration's the part is what is stored, and the graph refuses it.
    """

    def make(info: TensorInfo, config: Config) -> Part:
        groups, heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
        width = config.integer("linear_value_head_dim") if wide else 1
        first = 2 * groups * config.integer("linear_key_head_dim") if after_keys else 0
        matrix = len(info.shape) == 2
        if (
            not groups or heads % groups or axis >= len(info.shape) or not (matrix or compute)
            or info.shape[axis] != first + heads * width
        ):  # fmt: skip
            return Same(info)
        if compute is None:
            return Tiled(info, groups, heads, width, first=first, columns=axis == 1)

        def values(stored: Any) -> Any:
            import numpy as np

            rows = compute(stored)
            return np.concatenate([rows[:first], tiled(rows[first:], groups, heads)])

        shape = (info.shape[0],) if len(info.shape) == 1 else (info.shape[0], math.prod(info.shape[1:]))
        return Computed(info, shape, values)

    return make


def _rate(logarithms: Any) -> Any:
    """-exp(A_log), by the exponential function of every machine (design rule R6)."""
    import numpy as np

    from rase._kernels import mathfn

    out = np.empty(len(logarithms))
    mathfn.exp(logarithms.astype(float), out)
    return -out


PARTS: dict[str, Callable[[TensorInfo, Config], Part]] = {
    "attn_qkv": _part(after_keys=True), "attn_gate": _part(), "ssm_out": _part(axis=1),
    "ssm_alpha": _part(wide=False), "ssm_beta": _part(wide=False),
    "ssm_a": _part(wide=False, compute=_rate), "ssm_dt": _part(wide=False, compute=lambda bias: bias),
    "ssm_conv1d": _part(after_keys=True, compute=lambda taps: taps.reshape(len(taps), -1)),
    "ssm_norm": lambda info, config: Same(info),  # the one norm whose weights hold all
}  # fmt: skip
