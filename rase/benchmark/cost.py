"""What a token costs at least, from a model's graph and file alone: bytes that are read, operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """Costs of one token.

    ``file_bytes`` are all weights as the file stores them. ``token_bytes`` is the part that one generated
    token reads: all but an embedding from which it takes one row. ``token_flop`` counts a multiplication and
    an addition for each weight of a matrix, ``prompt_flop`` the same without the output layer, which prompt
    tokens skip. Attention is in none of them: it depends on the context.
    """

    file_bytes: int
    token_bytes: int
    token_flop: int
    prompt_flop: int


def cost_of(graph: Graph, tensors: Mapping[str, TensorInfo]) -> Cost:
    """The cost of a token of ``graph``, whose weights are ``tensors`` of a file."""
    from rase.graph import ops

    looked_up = {op.weight.name for op in graph.ops if isinstance(op, ops.Embed)}
    output = {op.weight.name for op in graph.ops if isinstance(op, ops.Logits)}
    read = {weight.name for op in graph.ops if not isinstance(op, ops.Embed) for weight in op.weights}
    rows_only = looked_up - read

    def flop(names: set[str]) -> int:
        return sum(
            2 * rows * cols
            for name, weight in graph.weights.items()
            if name in names and len(weight.shape) == 2
            for rows, cols in [weight.shape]
        )

    sizes = {
        name: sum(tensors[part].nbytes for part in weight.parts or (name,))
        for name, weight in graph.weights.items()
    }
    return Cost(
        file_bytes=sum(sizes.values()),
        token_bytes=sum(size for name, size in sizes.items() if name not in rows_only),
        token_flop=flop(read),
        prompt_flop=flop(read - output),
    )
