"""``Planted``: a program with one more thing to sum up, right or with one of three faults that engines have.

Each token adds a fixed float32 number; every row of logits gets the sum over the positions that it sees, made
the way that attention makes it: chunks of 256 absolute positions, each summed in ascending order, merged in
ascending order. What is summed is read from pages of its own. ``fault`` changes nothing but an order:

    threads     the positions are shared out among the threads, and what each one gets is summed first
    anchor      the chunks of a prompt begin where its step begins: after a cache hit, or the pieces before
    rows        a step with more than four rows sums pairwise
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rase.backends.base import PROMPT, Batch, Program

__all__ = ["FAULTS", "Planted"]

FAULTS = ("threads", "anchor", "rows")
CHUNK = 256


class Planted(Program):
    """``inner`` with the sum, on ``threads`` threads."""

    def __init__(self, inner: Program, threads: int, fault: str | None) -> None:
        self.inner, self.threads, self.fault = inner, threads, fault
        self.graph, self.numerics_class = inner.graph, inner.numerics_class
        self.page_layout = inner.page_layout
        own = 4 * self.page_tokens  # the numbers of a page, behind what the first group has
        self.page_bytes = (inner.page_bytes[0] + own, *inner.page_bytes[1:])
        self.max_batch_tokens, self.one_arithmetic = inner.max_batch_tokens, inner.one_arithmetic
        numbers = np.random.default_rng(5).normal(size=(2, self.graph.vocab_size))  # by role
        self._numbers = numbers.astype(np.float32)
        if self.one_arithmetic:
            self._numbers[1] = self._numbers[0]
        self._stored = np.zeros((0, self.page_tokens), np.float32)

    @property
    def reserved_pages(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.inner.reserved_pages

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        self.inner.reserve_pages(n, group)
        if not group and n > len(self._stored):
            more = np.full((n - len(self._stored), self.page_tokens), np.nan, np.float32)
            self._stored = np.concatenate([self._stored, more])

    def copy_page(self, group: int, source: int, target: int) -> None:
        self.inner.copy_page(group, source, target)
        if group == 0:
            self._stored[target] = self._stored[source]

    def save_page(self, group: int, page: int) -> bytes:
        return self.inner.save_page(group, page) + (b"" if group else self._stored[page].tobytes())

    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        size = self.inner.page_bytes[group]
        self.inner.restore_page(group, page, data[:size], tokens)
        if group == 0:
            self._stored[page] = np.frombuffer(data[size:], np.float32)

    def run(self, batch: Batch) -> Any:
        logits = self.inner.run(batch).copy()
        tables, positions = batch.page_tables[0], batch.positions[0]
        pages = tables[batch.sequences, positions // self.page_tokens]
        self._stored[pages, positions % self.page_tokens] = self._numbers[batch.roles, batch.ids]
        for row, token in enumerate(batch.logits_rows):
            sequence = batch.sequences[token]
            seen = self._stored[tables[sequence]].reshape(-1)[: positions[token] + 1]
            first = int(positions[batch.sequences == sequence][0])
            logits[row] += self._sum(seen, first if batch.roles[token] == PROMPT else 0, len(batch.ids))
        return logits

    def _sum(self, values: Any, first: int, rows: int) -> np.float32:
        cuts = list(range(CHUNK, len(values), CHUNK))
        if self.fault == "threads":
            cuts = [len(values) * part // self.threads for part in range(1, self.threads)]
        elif self.fault == "anchor" and first:
            cuts = [first, *range(first + CHUNK, len(values), CHUNK)]
        if self.fault == "rows" and rows > 4:
            return np.float32(values.sum(dtype=np.float32))  # NumPy adds pairwise
        parts = np.array([_ascending(part) for part in np.split(values, cuts)], np.float32)
        return _ascending(parts)

    def close(self) -> None:
        self.inner.close()


def _ascending(values: Any) -> np.float32:
    return np.float32(np.cumsum(values, dtype=np.float32)[-1]) if len(values) else np.float32(0)
