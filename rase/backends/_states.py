"""Where recurrent states stand: a page that holds one is good for exactly one next position.

K and V of a position can be overwritten and read in any order; a state cannot. So a program with recurrent
layers knows of each page of a state group how many tokens are in it, and refuses a batch that would go on
from anywhere else. A sequence starts from nothing at position 0, whatever its page holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rase.errors import BackendError

if TYPE_CHECKING:
    from rase.backends.base import Batch
    from rase.graph.ops import Graph

__all__ = ["States"]

_UNKNOWN = -1


class States:
    """The tokens that went into the state of each reserved page, by state group of ``graph``."""

    def __init__(self, graph: Graph, page_tokens: int) -> None:
        import numpy as np

        self.page_tokens = page_tokens
        groups = [index for index, group in enumerate(graph.caches) if group.kind == "state"]
        self._tokens: dict[int, Any] = {group: np.zeros(0, np.int64) for group in groups}

    @classmethod
    def of(cls, graph: Graph, page_tokens: int) -> States | None:
        """None for a graph without recurrent layers."""
        return cls(graph, page_tokens) if any(group.kind == "state" for group in graph.caches) else None

    def reserve(self, reserved: tuple[int, ...]) -> None:
        """There are ``reserved[g]`` pages now."""
        import numpy as np

        for group, tokens in self._tokens.items():
            self._tokens[group] = np.append(tokens, np.full(reserved[group] - len(tokens), _UNKNOWN))

    def copy(self, group: int, source: int, target: int) -> None:
        """Page ``target`` of ``group`` holds what ``source`` does."""
        if group in self._tokens:
            self._tokens[group][target] = self._tokens[group][source]

    def put(self, group: int, page: int, tokens: int) -> None:
        """Page ``page`` of ``group`` was given the state after ``tokens`` tokens."""
        if group in self._tokens:
            self._tokens[group][page] = tokens

    def accepts_one(self, batch: Batch) -> bool:
        """Whether the only token of a batch, whose pages exist, goes on where its states stand."""
        position, row = batch.positions.item(), batch.sequences.item()
        if position == 0:
            return True
        place = (position - 1) // self.page_tokens
        pages = [(tokens, batch.page_tables[group, row, place]) for group, tokens in self._tokens.items()]
        return all(tokens[page] == position for tokens, page in pages)

    def check(self, batch: Batch) -> None:
        """Raise ``BackendError`` unless every sequence goes on where its states stand.

        The pages of the token before the first and of the last one must exist; those between may be absent.
        """
        for group in self._tokens:
            table, written = batch.page_tables[group], []
            for row, first, last in self._spans(batch):
                before = table[row, (first - 1) // self.page_tokens] if first else -1
                if first and (before < 0 or self._tokens[group][before] != first):
                    tokens = self._tokens[group][before] if before >= 0 else _UNKNOWN
                    stand = "nowhere" if tokens == _UNKNOWN else f"after {tokens} tokens"
                    raise BackendError(
                        "invalid batch: a recurrent state stands elsewhere", expected=f"after {first} tokens",
                        found=stand, hint="Run the sequence again from its start or from a kept page.",
                    )  # fmt: skip
                if table[row, last // self.page_tokens] < 0:
                    raise BackendError("invalid batch: the page of a sequence's last token is missing")
                written += self._written(table, row, first, last)
            places = [int((table == page).sum()) for page in written]
            if any(count != 1 for count in places):
                raise BackendError("invalid batch: a page that is written belongs to two places")

    @contextmanager
    def running(self, batch: Batch) -> Iterator[None]:
        """While a batch runs its pages stand nowhere, and still do so when it fails."""
        self._mark(batch, ended=False)
        yield
        self._mark(batch, ended=True)

    def _mark(self, batch: Batch, ended: bool) -> None:
        for group, tokens in self._tokens.items():
            for row, first, last in self._spans(batch):
                for place in range(first // self.page_tokens, last // self.page_tokens + 1):
                    page = batch.page_tables[group][row, place]
                    if page >= 0:
                        tokens[page] = min(last + 1, (place + 1) * self.page_tokens) if ended else _UNKNOWN

    def _written(self, table: Any, row: int, first: int, last: int) -> list[int]:
        places = table[row, first // self.page_tokens : last // self.page_tokens + 1]
        return [int(page) for page in places if page >= 0]

    def _spans(self, batch: Batch) -> Iterator[tuple[int, int, int]]:
        """Each sequence of the batch: its row, its first and its last position, all of one role."""
        import numpy as np

        positions, sequences = batch.positions[0], batch.sequences
        if len(sequences) == 1:
            yield sequences.item(), positions.item(), positions.item()
            return
        cuts = np.flatnonzero(np.diff(sequences)) + 1
        edges = [0, *cuts.tolist(), len(sequences)]
        seen = set()
        for begin, end in pairwise(edges):
            row, first, last = int(sequences[begin]), int(positions[begin]), int(positions[end - 1])
            alike = batch.roles[begin] == batch.roles[end - 1]
            if last - first != end - begin - 1 or row in seen or not alike:
                raise BackendError("invalid batch: the tokens of a sequence with states are not in one row")
            seen.add(row)
            yield row, first, last
