"""A decoder in float64, written from the papers alone: the independent judge of graphs and backends.

It imports nothing from rase, knows no pages, batches or ops, and computes a whole sequence at once with
matrices. Sources: Llama 2 (arXiv 2307.09288), RoFormer (2104.09864), GQA (2305.13245), RMSNorm (1910.07467),
SwiGLU (2002.05202), Mistral's window (2310.06825), Llama 3.1's frequency factors and Qwen3 (2505.09388).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def oracle_logits(
    ids: Sequence[int],
    weights: Mapping[str, np.ndarray],
    *,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    eps: float,
    theta: float,
    pairing: str,
    rope_dim: int | None = None,
    rope_scale: float = 1.0,
    window: int | None = None,
    use_factors: bool = True,
) -> np.ndarray:
    """Logits (len(ids), vocab_size) after each token. ``weights`` has GGUF names and matrices (out, in)."""
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    n, rope_dim = len(ids), rope_dim or head_dim

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1)[..., None] + eps) * gain

    def project(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    # A pair of elements is one complex number; rotating it is a product with exp(i · angle).
    inverse = np.power(theta, -np.arange(0, rope_dim, 2) / rope_dim)
    if use_factors and "rope_freqs.weight" in w:
        inverse = inverse / w["rope_freqs.weight"]
    turn = np.exp(1j * np.outer(np.arange(n) / rope_scale, inverse))[:, None, :]  # (n, 1, rope_dim/2)

    def rotate(x: np.ndarray) -> np.ndarray:  # (n, heads, head_dim)
        turned, rest = x[..., :rope_dim], x[..., rope_dim:]
        if pairing == "neighbour":
            z = (turned[..., 0::2] + 1j * turned[..., 1::2]) * turn
            turned = np.stack([z.real, z.imag], axis=-1).reshape(turned.shape)
        else:
            real, imaginary = np.split(turned, 2, axis=-1)
            z = (real + 1j * imaginary) * turn
            turned = np.concatenate([z.real, z.imag], axis=-1)
        return np.concatenate([turned, rest], axis=-1)

    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    visible = (distance >= 0) & (distance < (window or n))

    h = w["token_embd.weight"][np.asarray(ids)]
    for i in range(n_layers):
        x = norm(h, w[f"blk.{i}.attn_norm.weight"])
        q = project(x, f"blk.{i}.attn_q").reshape(n, n_heads, head_dim)
        k = project(x, f"blk.{i}.attn_k").reshape(n, n_kv_heads, head_dim)
        v = project(x, f"blk.{i}.attn_v").reshape(n, n_kv_heads, head_dim)
        if f"blk.{i}.attn_q_norm.weight" in w:
            q = norm(q, w[f"blk.{i}.attn_q_norm.weight"])
            k = norm(k, w[f"blk.{i}.attn_k_norm.weight"])
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(a, n_heads // n_kv_heads, axis=1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim)
        scores = np.where(visible, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
        h = h + project(np.einsum("hqk,khd->qhd", p, v).reshape(n, -1), f"blk.{i}.attn_output")

        x = norm(h, w[f"blk.{i}.ffn_norm.weight"])
        gate = project(x, f"blk.{i}.ffn_gate")
        h = h + project(gate / (1 + np.exp(-gate)) * project(x, f"blk.{i}.ffn_up"), f"blk.{i}.ffn_down")

    out = "output" if "output.weight" in w else "token_embd"
    return project(norm(h, w["output_norm.weight"]), out)


def oracle(tiny: Any, ids: Sequence[int], **changes: Any) -> np.ndarray:
    """Logits of a tiny Llama or Qwen3 model after each id, on its dequantized weights."""
    same = (
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "head_dim",
        "eps",
        "theta",
        "rope_dim",
        "rope_scale",
        "window",
    )
    facts: dict[str, Any] = {name: getattr(tiny, name) for name in same}
    facts["pairing"] = "half" if tiny.architecture == "qwen3" else "neighbour"
    return oracle_logits(ids, tiny.source.floats(), **(facts | changes))
