"""Rotary factors that config.json states as numbers and GGUF files hold as tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rase.checkpoint.config import Config, context_length, log, rope_kind, rope_tables

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["rope_factors"]


def rope_factors(config: Config) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Tensors of factors by name, float32 ``(rope_dim / 2,)``, and the metadata that belong to them.

    ``rope_freqs`` for Llama 3.1's scaling, ``rope_factors_long`` and ``_short`` for long rope.
    """
    import numpy as np

    rope, _ = rope_tables(config)
    kind = rope_kind(rope)
    if kind == "llama3":
        return {"rope_freqs.weight": np.array(_llama3(config, rope), np.float32)}, {}
    if kind not in ("longrope", "su"):
        return {}, {}
    original = rope.integer("original_max_position_embeddings", None)
    original = original or config.integer("original_max_position_embeddings")
    factor = rope.number("factor", None) or context_length(config) / original
    usual = math.sqrt(1 + log(factor) / log(original)) if factor > 1 else 1.0
    tensors = {}
    for name in ("short", "long"):
        values = rope.get(f"{name}_factor")
        if not (isinstance(values, list) and values and all(type(v) in (int, float) for v in values)):
            raise config.bad(f"{name}_factor", "a list of numbers", values)
        tensors[f"rope_factors_{name}.weight"] = np.array(values, np.float32)
    return tensors, {
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": rope.number("attention_factor", usual),
    }


def _llama3(config: Config, rope: Config) -> list[float]:
    """By what Llama 3.1 divides each frequency: 1 for short wavelengths, ``factor`` for long ones."""
    import numpy as np

    from rase._kernels.mathfn import inv_freq

    factor, low, high = (rope.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original, theta = rope.integer("original_max_position_embeddings"), rope.number("rope_theta", 10000.0)
    frequencies = np.empty(config.head_dim // 2)
    inv_freq(theta, config.head_dim, frequencies)
    if high <= low:
        raise config.bad("high_freq_factor", f"more than low_freq_factor {low}", high)
    factors = []
    for wavelength in (2 * math.pi / frequencies).tolist():
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors
