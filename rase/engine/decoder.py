"""``ProgramDecoder``: the one-sequence view of a ``Program`` that holds its pages, length and roles.

Prompt tokens run with the role PROMPT in chunks, generated tokens one by one with the role GENERATED. Nothing
here computes: it fills a ``Batch`` and lets ``Program.run`` do the work without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rase.backends.base import GENERATED, PROMPT, Batch
from rase.engine.generation import TokenDecoder
from rase.engine.kv_cache import ABSENT, SequencePages
from rase.errors import Cancelled, ContextLengthExceeded, InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rase.backends.base import Program
    from rase.engine.kv_cache import PagePool

__all__ = ["ProgramDecoder", "check_ids"]


class ProgramDecoder(TokenDecoder):
    """One sequence over a compiled program.

    ``tokenizer_vocab_size`` is the number of ids that the tokenizer knows; the output layer may have more
    rows (padding), which can be read as prompt ids but are never chosen. ``chunk`` is the most prompt tokens
    of one step, by default the program's ``max_batch_tokens``; it changes how soon a cancel is noticed, never
    the logits.

    After any error the decoder is usable: a failed ``prefill`` leaves it empty, a failed ``decode`` leaves it
    as it was. It is not thread-safe.
    """

    def __init__(
        self,
        program: Program,
        pool: PagePool,
        tokenizer_vocab_size: int | None = None,
        eos: int | None = None,
        cancelled: Callable[[], bool] | None = None,
        chunk: int | None = None,
    ) -> None:
        rows = program.graph.vocab_size
        self.program, self.pool = program, pool
        self.vocab_size = rows if tokenizer_vocab_size is None else min(tokenizer_vocab_size, rows)
        self.context_length: int = program.graph.context_length
        self.cancelled = cancelled
        self.length = 0  # positions whose KV is in the cache
        self._rows = rows
        self._eos = eos
        self._chunk = max(1, min(chunk or program.max_batch_tokens, program.max_batch_tokens))
        self._pages = SequencePages(pool)
        groups = len(self._pages.tables)
        self._table = np.full((groups, 1, 1), ABSENT, np.int32)  # this sequence's page ids by group
        self._step = Batch(  # the batch of one generated token, filled again for each
            ids=np.zeros(1, np.int32),
            positions=np.zeros((1, 1), np.int32),
            sequences=np.zeros(1, np.int32),
            page_tables=self._table,
            roles=np.full(1, GENERATED, np.uint8),
            logits_rows=np.zeros(1, np.int32),
        )

    def eos_token(self) -> int | None:
        """The end token given at construction."""
        return self._eos

    def prefill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Start a new sequence with the prompt ``ids``; return the logits ``(vocab,)`` after its last token.

        Raises ``InvalidRequest`` (empty, or ids outside the vocabulary) and ``ContextLengthExceeded`` before
        any compute and without touching the sequence; ``InsufficientMemory``; ``Cancelled`` by the hook.
        """
        prompt = check_ids(ids, self._rows)
        if len(prompt) > self.context_length:
            raise ContextLengthExceeded(len(prompt), self.context_length, param="prompt")
        self.truncate(0)
        try:
            logits = self._run_prompt(prompt)
        except BaseException:
            self.truncate(0)
            raise
        return logits

    def decode(self, id: int) -> NDArray[np.float32]:
        """Append the generated token ``id``; return the logits ``(vocab,)`` after it.

        Raises ``InvalidRequest`` (id outside the vocabulary, or nothing to continue),
        ``ContextLengthExceeded`` when the context is full, ``InsufficientMemory``.
        """
        if not 0 <= id < self._rows:
            raise _outside(id, self._rows)
        if self.length == 0:
            raise InvalidRequest("decode without a prompt", hint="Call prefill first.")
        if self.length >= self.context_length:
            raise ContextLengthExceeded(self.length + 1, self.context_length)
        before = self.length
        try:
            self._reserve(before + 1)
            step = self._step
            step.ids[0] = id
            step.positions[0, 0] = before
            logits: NDArray[np.float32] = self.program.run(step)[0]
        except BaseException:
            self.truncate(before)
            raise
        self.length = before + 1
        return logits

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions and release the pages beyond them."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        self._pages.truncate(length)
        self._table[:, 0, -(-length // self.pool.page_tokens) :] = ABSENT
        self.length = length

    def close(self) -> None:
        """Release all pages. The program and the pool belong to the caller."""
        self.truncate(0)

    def _run_prompt(self, prompt: NDArray[np.int32]) -> NDArray[np.float32]:
        last = np.zeros(0, np.int32)
        logits = np.zeros((0, self._rows), np.float32)
        for start in range(0, len(prompt), self._chunk):
            if self.cancelled is not None and self.cancelled():
                raise Cancelled("prefill")
            piece = prompt[start : start + self._chunk]
            end = start + len(piece)
            self._reserve(end)
            if end == len(prompt):
                last = np.array([len(piece) - 1], np.int32)
            logits = self.program.run(
                Batch(
                    ids=piece,
                    positions=np.arange(start, end, dtype=np.int32)[None],
                    sequences=np.zeros(len(piece), np.int32),
                    page_tables=self._table,
                    roles=np.full(len(piece), PROMPT, np.uint8),
                    logits_rows=last,
                )
            )
            self.length = end
        result: NDArray[np.float32] = logits[0]
        return result

    def _reserve(self, length: int) -> None:
        """Hold pages for ``length`` positions."""
        have, needed = len(self._pages.tables[0]), -(-length // self.pool.page_tokens)
        if needed <= have:
            return
        self._pages.reserve(length)
        if needed > self._table.shape[2]:
            table = np.full((len(self._table), 1, 2 * needed), ABSENT, np.int32)
            table[:, :, :have] = self._table[:, :, :have]
            self._table = self._step.page_tables = table
        self._table[:, 0, have:needed] = [pages[have:needed] for pages in self._pages.tables]


def check_ids(ids: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    """Return ``ids`` as int32 ``(n,)``.

    Raises ``InvalidRequest`` when there are none, when one is not a whole number or is outside
    0..vocab_size-1.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or array.size == 0:
        raise InvalidRequest(
            "the prompt is empty" if array.ndim == 1 else "the prompt is not a list of token ids",
            expected="at least one token id",
            hint="Send some text, or a beginning-of-text token.",
            param="prompt",
        )
    if array.dtype.kind not in "iu":
        raise InvalidRequest(
            "the prompt is not a list of token ids", found=f"values of type {array.dtype}", param="prompt"
        )
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        raise _outside(int(array[outside[0]]), vocab_size)
    return array.astype(np.int32)


def _outside(id: int, vocab_size: int) -> InvalidRequest:
    return InvalidRequest(
        "a token id outside the vocabulary", expected=f"0 to {vocab_size - 1}", found=id, param="prompt"
    )
