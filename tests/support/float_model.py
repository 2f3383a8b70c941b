"""A small llama of float weights as models have them: heavy tails, columns of different scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.gguf_build import write_gguf

FORMATS = ("F32", "F16", "BF16")


def float_weights(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Student's t with 6 degrees of freedom, each column by a factor of its own."""
    rng = np.random.default_rng(seed)
    values = rng.standard_t(6, shape) * rng.uniform(0.5, 1.5, shape[1]) * 0.03
    return values.astype(np.float32)


def write_float_model(
    path: Path, dim: int = 256, hidden: int = 512, n_layers: int = 2, matrices: str = "F32", tied: bool = True
) -> Path:
    """Write a llama without a tokenizer, whose matrices all are of one float format."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama", "general.name": "floats", "general.tags": ["a", "ü"],
        "llama.block_count": n_layers, "llama.context_length": 64, "llama.embedding_length": dim,
        "llama.feed_forward_length": hidden, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 96, "tokenizer.ggml.model": "none",
    }  # fmt: skip
    shapes = {"token_embd": (96, dim)}
    for layer in range(n_layers):
        shapes |= {
            f"blk.{layer}.attn_q": (dim, dim), f"blk.{layer}.attn_k": (dim // 2, dim),
            f"blk.{layer}.attn_v": (dim // 2, dim), f"blk.{layer}.attn_output": (dim, dim),
            f"blk.{layer}.ffn_gate": (hidden, dim), f"blk.{layer}.ffn_up": (hidden, dim),
            f"blk.{layer}.ffn_down": (dim, hidden),
        }  # fmt: skip
    if not tied:
        shapes["output"] = (96, dim)
    tensors: dict[str, Any] = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        tensors[f"{name}.weight"] = (float_weights(shape, seed), matrices)
    norms = ["output_norm", *(f"blk.{i}.{n}" for i in range(n_layers) for n in ("attn_norm", "ffn_norm"))]
    for name in norms:
        tensors[f"{name}.weight"] = np.linspace(0.5, 1.5, dim, dtype=np.float32)
    return write_gguf(path, metadata, tensors)
