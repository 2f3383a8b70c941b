"""TINY-LLAMA, TINY-QWEN3 and a small random model of every other architecture that rase runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from rase.graph.ops import Attention, Causal, Graph
from rase.testing.random_model import Drawn, RandomModel
from rase.testing.weights import MemoryWeights


@dataclass(frozen=True)
class Tiny(RandomModel):
    """A seeded random decoder. ``matrices`` is the format of every matrix; norms and biases are F32."""

    architecture: str = "llama"
    n_layers: int = 2
    dim: int = 64
    hidden: int = 96
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 101
    context: int = 1024
    theta: float = 10000.0
    eps: float = 1e-5
    tied: bool = False
    biases: bool = False
    rope_dim: int | None = None
    rope_scale: float = 1.0
    n_experts: int = 0  # of which extra["expert_used_count"] answer each token; hidden is the width of one
    factors: tuple[float, ...] | None = None
    long_factors: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # short, long
    window: int | None = None
    matrices: str = "F32"
    std: float = 0.15
    seed: int = 1
    extra: dict[str, Any] = field(default_factory=dict)  # further metadata, without the prefix; None removes

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What a GGUF file of this model would say."""
        own: dict[str, Any] = {
            "block_count": self.n_layers, "embedding_length": self.dim, "feed_forward_length": self.hidden,
            "context_length": self.context, "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads, "attention.layer_norm_rms_epsilon": self.eps,
            "attention.key_length": self.head_dim, "attention.value_length": self.head_dim,
            "rope.freq_base": self.theta, "rope.dimension_count": self.rope_dim or self.head_dim,
        }  # fmt: skip
        if self.rope_scale != 1:
            own |= {"rope.scaling.type": "linear", "rope.scaling.factor": self.rope_scale}
        if self.n_experts:
            own |= {"expert_count": self.n_experts}
            if self.architecture != "llama":  # Mixtral's experts are as wide as its feed_forward_length
                own |= {"expert_feed_forward_length": self.hidden, "feed_forward_length": 4 * self.hidden}
        if self.window is not None:
            own["attention.sliding_window"] = self.window
        own |= self.extra
        return self.said(own)

    @cached_property
    def source(self) -> MemoryWeights:
        """The weights, as a backend reads them."""
        drawn = Drawn(self.seed, self.matrices, self.std)
        rng, tensors, matrix, norm = drawn.rng, drawn.tensors, drawn.matrix, drawn.norm
        heads, kv_heads = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        arch = self.architecture
        matrix("token_embd", self.vocab, self.dim)
        if not self.tied:
            matrix("output", self.vocab, self.dim)
        norm("output_norm", self.dim)
        if self.factors is not None:
            tensors["rope_freqs.weight"] = np.asarray(self.factors, np.float32)
        if self.long_factors is not None:
            for name, factors in zip(("short", "long"), self.long_factors, strict=True):
                tensors[f"rope_factors_{name}.weight"] = np.asarray(factors, np.float32)
        for i in range(self.n_layers):
            if arch == "qwen35":
                norm(f"blk.{i}.attn_norm", self.dim)
                norm(f"blk.{i}.post_attention_norm", self.dim)
                if (i + 1) % 4:
                    self._delta_net(i, drawn)
                    self._feed_forward(i, matrix)
                    continue
            elif arch != "olmo2":
                norm(f"blk.{i}.attn_norm", self.dim)
                norm(f"blk.{i}.ffn_norm", self.dim)
            if arch in ("olmo2", "gemma2", "gemma3"):
                norm(f"blk.{i}.post_attention_norm", self.dim)
                norm(f"blk.{i}.post_ffw_norm", self.dim)
            if arch in ("qwen3", "qwen3moe", "gemma3", "olmo2", "qwen35"):
                norm(f"blk.{i}.attn_q_norm", heads if arch == "olmo2" else self.head_dim)
                norm(f"blk.{i}.attn_k_norm", kv_heads if arch == "olmo2" else self.head_dim)
            if arch == "phi3":
                matrix(f"blk.{i}.attn_qkv", heads + 2 * kv_heads, self.dim)
            else:
                matrix(f"blk.{i}.attn_q", heads * (2 if arch == "qwen35" else 1), self.dim, bias=self.biases)
                matrix(f"blk.{i}.attn_k", kv_heads, self.dim, bias=self.biases)
                matrix(f"blk.{i}.attn_v", kv_heads, self.dim, bias=self.biases)
            matrix(f"blk.{i}.attn_output", self.dim, heads)
            if self.n_experts:
                router = rng.normal(0, 2 * self.std, (self.n_experts, self.dim))
                tensors[f"blk.{i}.ffn_gate_inp.weight"] = router.astype(np.float32)
                matrix(f"blk.{i}.ffn_gate_exps", self.n_experts, self.hidden, self.dim)
                matrix(f"blk.{i}.ffn_up_exps", self.n_experts, self.hidden, self.dim)
                matrix(f"blk.{i}.ffn_down_exps", self.n_experts, self.dim, self.hidden)
                continue
            self._feed_forward(i, matrix)
        return MemoryWeights(tensors)

    def _feed_forward(self, i: int, matrix: Any) -> None:
        if self.architecture != "phi3":
            matrix(f"blk.{i}.ffn_gate", self.hidden, self.dim)
        matrix(f"blk.{i}.ffn_up", self.hidden * (2 if self.architecture == "phi3" else 1), self.dim)
        matrix(f"blk.{i}.ffn_down", self.dim, self.hidden)

    def _delta_net(self, i: int, drawn: Drawn) -> None:
        """A recurrent layer of Qwen3.5, as its files hold it."""
        rng, tensors, matrix, norm = drawn.rng, drawn.tensors, drawn.matrix, drawn.norm
        keys = self.extra["ssm.group_count"] * self.extra["ssm.state_size"]
        heads, values = self.extra["ssm.time_step_rank"], self.extra["ssm.inner_size"]
        channels = 2 * keys + values
        matrix(f"blk.{i}.attn_qkv", channels, self.dim)
        matrix(f"blk.{i}.attn_gate", values, self.dim)
        matrix(f"blk.{i}.ssm_alpha", heads, self.dim)
        matrix(f"blk.{i}.ssm_beta", heads, self.dim)
        matrix(f"blk.{i}.ssm_out", self.dim, values)
        taps = rng.normal(0, 0.5, (channels, self.extra["ssm.conv_kernel"]))
        tensors[f"blk.{i}.ssm_conv1d.weight"] = taps.astype(np.float32)
        logarithms = np.log(rng.uniform(0.02, 2, heads)).astype(np.float32)  # what checkpoints hold
        tensors[f"blk.{i}.ssm_a"] = -np.exp(logarithms.astype(float)).astype(np.float32)
        tensors[f"blk.{i}.ssm_dt.bias"] = rng.normal(0, 1, heads).astype(np.float32)
        norm(f"blk.{i}.ssm_norm", values // heads)


class Mixed(Tiny):
    """A tiny model with a window whose last layer sees everything: two cache groups."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(**{field.name: getattr(tiny, field.name) for field in fields(tiny)})

    def graph(self, **arguments: Any) -> Graph:
        graph = super().graph(**arguments)
        (window,) = graph.caches
        groups = (
            replace(window, n_layers=window.n_layers - 1),
            replace(window, kind="full", n_layers=1, window=None),
        )
        last = window.n_layers - 1
        ops = tuple(
            replace(op, cache=1, layer=0, mask=Causal())
            if isinstance(op, Attention) and op.layer == last
            else op
            for op in graph.ops
        )
        return replace(graph, ops=ops, caches=groups)


TINY_LLAMA = Tiny()
TINY_QWEN3 = Tiny(architecture="qwen3", head_dim=32, theta=1e6, eps=1e-6)  # heads · head_dim is not dim
WIDE_LLAMA = Tiny(dim=256, hidden=512, n_heads=4, head_dim=64, std=0.06)  # rows of whole K-quant blocks
WIDE_QWEN3 = Tiny(architecture="qwen3", dim=256, hidden=256, n_heads=4, head_dim=128, n_kv_heads=1, std=0.06)

# One model or more of each architecture, so small that 90 tokens leave windows and original contexts behind.
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
_GEMMA: dict[str, Any] = {"dim": 48, "head_dim": 32, "eps": 1e-6, "tied": True, "window": 24}
_LONG = (tuple(1 + 0.05 * i for i in range(6)), tuple(1 + 0.9 * i for i in range(6)))
ZOO: dict[str, Tiny] = {
    "llama3.1": TINY_LLAMA.but(factors=(1, 1, 1.5, 2, 3, 4, 8, 8), theta=500000.0),
    "llama-linear": TINY_LLAMA.but(rope_scale=4.0),
    "mistral-window": TINY_LLAMA.but(window=24),
    "mistral-yarn": TINY_LLAMA.but(extra=_YARN, context=128),
    "qwen2": Tiny("qwen2", biases=True, theta=1e6, eps=1e-6),
    "qwen2-yarn": Tiny("qwen2", biases=True, eps=1e-6, tied=True, context=128, extra=_YARN),
    "qwen3": TINY_QWEN3,
    "gemma2": Tiny("gemma2", n_layers=3, **_GEMMA, extra={
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}),
    "gemma3": Tiny("gemma3", n_layers=7, theta=1e6, rope_scale=8.0, **_GEMMA),
    "phi3": Tiny("phi3", n_kv_heads=4, window=40),
    "phi3-long": Tiny("phi3", context=128, rope_dim=12, long_factors=_LONG, extra={
        "rope.scaling.original_context_length": 32,
        "rope.scaling.attn_factor": 1.1832159757614136}),
    "granite": Tiny("granite", tied=True, extra={
        "embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.09, "logit_scale": 4.0}),
    "olmo2": Tiny("olmo2", theta=500000.0, eps=1e-6),
    "olmo3": Tiny("olmo2", n_layers=5, window=24, eps=1e-6, context=128, extra=_YARN),
    "mixtral": TINY_LLAMA.but(n_experts=5, extra={"expert_used_count": 2}),
    "qwen3moe": Tiny("qwen3moe", head_dim=32, hidden=32, theta=1e6, eps=1e-6, n_experts=12,
                     extra={"expert_used_count": 4}),
    "smollm3": Tiny("smollm3", n_layers=5, theta=2e6, eps=1e-6, tied=True),
    "qwen35": Tiny("qwen35", n_layers=5, head_dim=32, rope_dim=8, theta=1e7, eps=1e-6, extra={
        "full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.group_count": 2, "ssm.time_step_rank": 6,
        "ssm.state_size": 16, "ssm.inner_size": 144, "rope.dimension_sections": [2, 1, 1, 0]}),
}  # fmt: skip
GOLDEN_IDS = 90
GOLDEN_ROWS = (0, 5, 22, 23, 24, 31, 32, 33, 47, 64, 89)
