"""Small random encoders (BERT, Nomic BERT): what a GGUF file of each would say and hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rase.backends.base import Backend, CompileOptions, Program
from rase.graph.ops import Graph
from rase.models import build
from tests.support.gguf_build import random_blocks
from tests.support.weights import MemoryWeights


@dataclass(frozen=True)
class TinyEncoder:
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

    def but(self, **changes: Any) -> TinyEncoder:
        """The same model with other values."""
        return replace(self, **changes)

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
        keys = {f"{self.architecture}.{name}": value for name, value in own.items()}
        return {"general.architecture": self.architecture, **keys}

    @cached_property
    def source(self) -> MemoryWeights:
        """The weights, as a backend reads them."""
        rng = np.random.default_rng(self.seed)
        biases = self.architecture == "bert"
        tensors: dict[str, Any] = {}

        def matrix(name: str, *shape: int) -> None:
            tensors[f"{name}.weight"] = (
                random_blocks(self.matrices, shape, rng, self.std),
                shape,
                self.matrices,
            )
            if biases:
                tensors[f"{name}.bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float32)

        def table(name: str, rows: int) -> None:
            tensors[f"{name}.weight"] = rng.normal(0, 1, (rows, self.dim)).astype(np.float32)

        def norm(name: str) -> None:
            tensors[f"{name}.weight"] = rng.uniform(0.5, 1.5, self.dim).astype(np.float32)
            tensors[f"{name}.bias"] = rng.normal(0, 0.3, self.dim).astype(np.float32)

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
        return MemoryWeights(tensors)

    def graph(self, **arguments: Any) -> Graph:
        """What ``rase.models`` makes of the metadata and the shapes."""
        return build(self.metadata, self.source.tensors, kind="embedding", **arguments)

    def compile(self, backend: Backend, **options: Any) -> Program:
        """A program with 64 pages reserved that takes a whole context in one step."""
        options = {"max_batch_tokens": 2 * self.context, **options}
        program = backend.compile(self.graph(), self.source, CompileOptions(**options))
        program.reserve_pages(64)
        return program

    def ids(self, n: int, seed: int = 7) -> list[int]:
        """n random token ids."""
        return np.random.default_rng(seed).integers(0, self.vocab, n).tolist()


ENCODERS: dict[str, TinyEncoder] = {
    "bert": TinyEncoder(),
    "nomic-bert": TinyEncoder("nomic-bert"),
}
GOLDEN_IDS = 300  # past one chunk of attention
GOLDEN_ROWS = (0, 5, 31, 32, 100, 255, 256, 299)
