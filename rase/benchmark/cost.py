"""What a token costs at least, from a model's graph and file alone: bytes that are read, operations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """Costs of one token.

    ``file_bytes`` are all weights as the file stores them. ``token_bytes`` is the part that one generated
    token reads: of an embedding one row, of a mixture the experts that it chooses. ``token_flop`` counts a
    multiplication and an addition for each weight of a matrix that a token meets, ``prompt_flop`` the same
    without the output layer, which prompt tokens skip. Attention is in none of them, as it depends on the
    context.
    """

    file_bytes: int
    token_bytes: int
    token_flop: int
    prompt_flop: int


def cost_of(graph: Graph, tensors: Mapping[str, TensorInfo]) -> Cost:
    """The cost of a token of ``graph``, whose weights are ``tensors`` of a file."""
    from rase.graph import ops

    chosen = {op.out: op.k for op in graph.ops if isinstance(op, ops.Route)}
    parts: dict[str, Fraction] = {}  # how much of each weight a token reads
    multiplied: set[str] = set()
    for op in graph.ops:
        for weight in op.weights:
            part = Fraction(1)
            if isinstance(op, ops.Embed):
                part = Fraction(1, weight.shape[0])
            elif isinstance(op, ops.LinearRouted):
                part = Fraction(chosen[op.route], weight.shape[0])
            parts[weight.name] = max(part, parts.get(weight.name, Fraction()))
            if len(weight.shape) > 1 and not isinstance(op, ops.Embed):
                multiplied.add(weight.name)
    output = {op.weight.name for op in graph.ops if isinstance(op, ops.Logits)}

    def flop(names: set[str]) -> int:
        return int(sum(2 * math.prod(graph.weights[name].shape) * parts[name] for name in names))

    sizes = {
        name: sum(tensors[stored].nbytes for stored in weight.parts or (name,))
        for name, weight in graph.weights.items()
    }
    return Cost(
        file_bytes=sum(sizes.values()),
        token_bytes=int(sum(size * parts.get(name, 1) for name, size in sizes.items())),
        token_flop=flop(multiplied),
        prompt_flop=flop(multiplied - output),
    )
