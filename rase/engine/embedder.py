"""Embedder: token ids in, one vector of length 1 per text out.

Several texts share a step, and a long one is cut into chunks where its graph allows it: neither changes a
bit. Pooling adds rows in float64, ascending; the length is an exact sum of squares, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rase.backends.base import PROMPT, Batch
from rase.engine.kv_cache import SequencePages
from rase.engine.turns import TURNS
from rase.errors import Cancelled, ContextLengthExceeded, InvalidLogits, InvalidRequest

if TYPE_CHECKING:
    from rase.backends.base import Program
    from rase.engine.kv_cache import PagePool

__all__ = ["Embedder", "Pooling"]

Pooling = Literal["mean", "cls", "last"]
_Part = tuple[int, int, int]  # text, its first token in this step, tokens


class Embedder:
    """Runs texts through one program, for one caller at a time.

    ``pooling``: the mean of all rows, the row of the first token, or that of the last. ``longest``: tokens of
    the longest text that runs; where tokens see what follows them, a text must fit into one step.
    """

    def __init__(self, program: Program, pool: PagePool, pooling: Pooling) -> None:
        self.program, self.pool, self.pooling = program, pool, pooling
        self.dim: int = program.graph.output.dim
        context = program.graph.context_length
        self.longest: int = min(context, program.max_batch_tokens) if program.graph.whole_input else context

    def check(self, ids: Sequence[int], param: str = "input") -> None:
        """Raise ``InvalidRequest``, ``ContextLengthExceeded`` or ``InsufficientMemory`` unless it can run."""
        if not ids:
            raise InvalidRequest(
                "an input is empty", expected="at least one token", found="none", param=param
            )
        if len(ids) > self.longest:
            raise ContextLengthExceeded(len(ids), self.longest, param=param)
        rows = self.program.graph.vocab_size
        if (wrong := next((id for id in ids if not 0 <= id < rows), None)) is not None:
            raise InvalidRequest("token id", expected=f"0 to {rows - 1}", found=wrong, param=param)
        self.pool.check_fits(len(ids))

    def embed(
        self,
        texts: Sequence[Sequence[int]],
        dimensions: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Vectors ``(len(texts), dim)``, float32, of length 1, of texts that ``check`` accepts.

        ``dimensions`` keeps the first elements of each, for models trained so (Kusupati et al., arXiv
        2205.13147). Raises ``InvalidLogits`` for a vector without a length, ``Cancelled`` and
        ``InsufficientMemory``.
        """
        out = np.empty((len(texts), self.dim if dimensions is None else dimensions), np.float32)
        pooled: dict[int, Any] = {}
        pages: dict[int, SequencePages] = {}
        try:
            for step in self._steps([len(ids) for ids in texts]):
                if cancelled is not None and cancelled():
                    raise Cancelled("the embedding was cancelled")
                rows, owners = self._run(step, texts, pages)
                for text, start, count in step:
                    self._pool(pooled, text, rows[owners == text])
                    if start + count == len(texts[text]):
                        out[text] = self._unit(pooled.pop(text), len(texts[text]), out.shape[1])
                        pages.pop(text).truncate(0)
        finally:
            for held in pages.values():
                held.truncate(0)
        return out

    def _steps(self, lengths: list[int]) -> Iterator[list[_Part]]:
        """Which tokens run together: texts in order, each step as full as it may be."""
        step: list[_Part] = []
        room = most = self.program.max_batch_tokens
        free = spare = self.pool.most_tokens  # positions that the cache holds at once
        whole = self.program.graph.whole_input
        for text, length in enumerate(lengths):
            start, held = 0, -(-length // self.pool.page_tokens) * self.pool.page_tokens
            while start < length:
                count = length if whole else min(length - start, room)
                if step and (not 0 < count <= room or held > free):
                    yield step
                    step, room, free = [], most, spare
                    continue
                step.append((text, start, count))
                room, free, start = room - count, free - held, start + count
        if step:
            yield step

    def _run(
        self, step: list[_Part], texts: Sequence[Sequence[int]], pages: dict[int, SequencePages]
    ) -> tuple[Any, Any]:
        """The wanted rows of one step, and to which text each belongs."""
        for text, start, count in step:
            held = pages.setdefault(text, SequencePages(self.pool))
            held.leave_behind(start)
            held.reserve(start + count)
        tables = [pages[text].tables for text, _, _ in step]
        width = max(len(table) for groups in tables for table in groups)
        page_tables = np.full((len(tables[0]), len(step), width), -1, np.int32)
        for sequence, groups in enumerate(tables):
            for group, table in enumerate(groups):
                page_tables[group, sequence, : len(table)] = table
        counts = [count for _, _, count in step]
        ends = np.cumsum(counts)
        wanted: list[int] = []
        owners: list[int] = []
        for (text, start, count), end in zip(step, ends.tolist(), strict=True):
            last = start + count == len(texts[text])
            chosen = {"mean": count, "cls": int(start == 0), "last": int(last)}[self.pooling]
            first = end - 1 if self.pooling == "last" else end - count
            wanted += range(first, first + chosen)
            owners += [text] * chosen
        batch = Batch(
            ids=np.concatenate([np.asarray(texts[t][s : s + n], np.int32) for t, s, n in step]),
            positions=np.concatenate([np.arange(s, s + n, dtype=np.int32) for _, s, n in step]).reshape(
                1, -1
            ),
            sequences=np.repeat(np.arange(len(step), dtype=np.int32), counts),
            page_tables=page_tables,
            roles=np.full(sum(counts), PROMPT, np.uint8),
            logits_rows=np.asarray(wanted, np.int32),
        )
        with TURNS:  # one step at a time, whatever model it belongs to
            return self.program.run(batch), np.asarray(owners)

    def _pool(self, pooled: dict[int, Any], text: int, rows: Any) -> None:
        """Add rows to what there is of a text: one after the other, wherever a step ended."""
        parts = [pooled[text][None]] if text in pooled else []
        if len(rows):
            pooled[text] = np.add.reduce(np.concatenate([*parts, rows.astype(np.float64)]), axis=0)

    def _unit(self, row: Any, tokens: int, dimensions: int) -> Any:
        vector = (row / tokens if self.pooling == "mean" else row)[:dimensions]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (vector * vector).tolist()
        length = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan
        if not length > 0:
            raise InvalidLogits("an embedding", expected="a vector with a length", found=f"length {length}")
        return (vector / length).astype(np.float32)
