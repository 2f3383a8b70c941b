"""Small random encoders (BERT, Nomic BERT): what a GGUF file of each would say and hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from rase.testing.random_model import Drawn, RandomModel
from rase.testing.weights import MemoryWeights


@dataclass(frozen=True)
class TinyEncoder(RandomModel):
    """A seeded random encoder. ``matrices`` is the format of the layers' matrices; the rest is F32."""

    architecture: str = "bert"
    n_layers: int = 2
    dim: int = 64
    hidden: int = 96
    n_heads: int = 4
    vocab: int = 101
    context: int = 320
    theta: float = 1000.0
    eps: float = 1e-12
    matrices: str = "F32"
    std: float = 0.15
    seed: int = 3

    kind = "embedding"
    compiled: ClassVar[dict[str, Any]] = {"max_batch_tokens": 640}  # two whole contexts in one step

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What a GGUF file of this model would say."""
        own: dict[str, Any] = {
            "block_count": self.n_layers, "embedding_length": self.dim, "feed_forward_length": self.hidden,
            "context_length": self.context, "attention.head_count": self.n_heads,
            "attention.layer_norm_epsilon": self.eps, "attention.causal": False, "pooling_type": 1,
        }  # fmt: skip
        if self.architecture == "nomic-bert":
            own["rope.freq_base"] = self.theta
        return self.said(own)

    @cached_property
    def source(self) -> MemoryWeights:
        """The weights, as a backend reads them."""
        drawn = Drawn(self.seed, self.matrices, self.std)
        biases = self.architecture == "bert"

        def matrix(name: str, *shape: int) -> None:
            drawn.matrix(name, *shape, bias=biases)

        def table(name: str, rows: int) -> None:
            drawn.tensors[f"{name}.weight"] = drawn.rng.normal(0, 1, (rows, self.dim)).astype(np.float32)

        def norm(name: str) -> None:
            drawn.norm(name, self.dim)
            drawn.bias(name, self.dim)

        table("token_embd", self.vocab)
        table("token_types", 2)
        if biases:
            table("position_embd", self.context)
        norm("token_embd_norm")
        for i in range(self.n_layers):
            if biases:
                for part in "qkv":
                    matrix(f"blk.{i}.attn_{part}", self.dim, self.dim)
            else:
                matrix(f"blk.{i}.attn_qkv", 3 * self.dim, self.dim)
                matrix(f"blk.{i}.ffn_gate", self.hidden, self.dim)
            matrix(f"blk.{i}.attn_output", self.dim, self.dim)
            norm(f"blk.{i}.attn_output_norm")
            matrix(f"blk.{i}.ffn_up", self.hidden, self.dim)
            matrix(f"blk.{i}.ffn_down", self.dim, self.hidden)
            norm(f"blk.{i}.layer_output_norm")
        return MemoryWeights(drawn.tensors)


ENCODERS: dict[str, TinyEncoder] = {
    "bert": TinyEncoder(),
    "nomic-bert": TinyEncoder("nomic-bert"),
}
GOLDEN_IDS = 300  # past one chunk of attention
GOLDEN_ROWS = (0, 5, 31, 32, 100, 255, 256, 299)
