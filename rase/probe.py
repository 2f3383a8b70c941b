"""A model of one layer with a known answer, in memory: what ``RuntimeDevice.smoke_test`` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["InMemoryWeights", "expected_logits", "probe_model"]

SIZE = 32  # vocabulary, dim and head_dim


class InMemoryWeights:
    """A ``WeightSource`` of float32 arrays."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        from rase.gguf.formats import FORMATS, TensorInfo

        self._arrays = arrays
        self.tensors: dict[str, TensorInfo] = {
            name: TensorInfo(name, array.shape, FORMATS[0], 0, 0, array.nbytes)
            for name, array in arrays.items()
        }

    def deliver(
        self,
        grains: Mapping[str, int],
        take: Callable[[TensorInfo, int, memoryview], object],
        threads: int = 1,
    ) -> None:
        """Hand over each tensor of ``grains`` whole, in this thread."""
        for name, info in self.tensors.items():
            if name in grains:
                take(info, 0, memoryview(self._arrays[name].tobytes()))


def probe_model() -> tuple[Graph, InMemoryWeights]:
    """Return the graph and its weights.

    Embedding, query, key and output are the identity; the value matrix moves element i to i + 1. One token
    attends only to itself, so the logits are the unit vector of its successor, exactly.
    """
    import numpy as np

    from rase.graph.builder import GraphBuilder

    unit = np.eye(SIZE, dtype=np.float32)
    arrays = {f"{name}.weight": unit for name in ("token_embd", "attn_q", "attn_k", "output")}
    arrays["attn_v.weight"] = np.roll(unit, 1, axis=0)
    weights = InMemoryWeights(arrays)
    sizes = dict.fromkeys(("vocab", "dim", "heads", "kv_heads"), SIZE)
    g = GraphBuilder(weights.tensors, architecture="probe", sizes=sizes, context_length=SIZE)
    q, k, v = g.linear(g.embed("token_embd"), "attn_q", "attn_k", "attn_v")
    g.logits(g.attention(q, k, v, head_dim=SIZE), "output")
    return g.finish(), weights


def expected_logits(id: int) -> list[float]:
    """The logits after the one token ``id``."""
    return [1.0 if index == (id + 1) % SIZE else 0.0 for index in range(SIZE)]
