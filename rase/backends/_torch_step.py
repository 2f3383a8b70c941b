"""A batch as a torch program reads it: tensors on the device, and the runs of tokens that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from rase.backends.base import Batch
    from rase.graph.ops import Graph

__all__ = ["Run", "Step"]


@dataclass(frozen=True)
class Run:
    """Tokens ``first`` to ``first + count`` of the batch: of one sequence and role, in a row of positions."""

    first: int
    count: int
    position: int
    sequence: int


class Step:
    """``pages`` and ``slots`` say where each token's K and V go, by cache group."""

    def __init__(self, batch: Batch, graph: Graph, page_tokens: int, device: Any) -> None:
        def put(array: Any) -> Any:
            return torch.as_tensor(np.ascontiguousarray(array), dtype=torch.int64, device=device)

        positions, sequences = batch.positions[0], batch.sequences
        self.n, self.page_tokens = len(batch.ids), page_tokens
        self.n_generated = self.n - int(np.count_nonzero(batch.roles))
        self.tables = batch.page_tables
        self.ids, self.positions, self.logits_rows = (
            put(batch.ids), put(positions), put(batch.logits_rows))  # fmt: skip
        self.pages = [put(table[sequences, positions // page_tokens]) for table in batch.page_tables]
        self.slots = put(positions % page_tokens)
        same = (sequences[1:] == sequences[:-1]) & (positions[1:] == positions[:-1] + 1)
        same &= batch.roles[1:] == batch.roles[:-1]
        edges = [0, *(np.flatnonzero(~same) + 1).tolist(), self.n]
        self.runs = [Run(a, b - a, int(positions[a]), int(sequences[a])) for a, b in pairwise(edges)]
        ones = all(run.count == 1 for run in self.runs)
        self.decodes = ones and not graph.whole_input  # every sequence has one token: all attend at once
        if self.decodes:  # pages that are absent were left behind by a window: what is read there is masked
            self.decode_tables = [put(np.maximum(table[sequences], 0)) for table in batch.page_tables]
