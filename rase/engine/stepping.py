"""What one step of the model holds: how many prompt tokens, of whom, and the ``Batch`` made of them.

Every sequence that decodes is in every step. Prompt tokens share what is left, so that a long prompt and a
short one both move on; while anyone decodes, they get only as many as fit into a short time, measured as it
goes. How a prompt is cut changes when it is done and never what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence as Order
from dataclasses import dataclass

import numpy as np

from rase._kernels.batch import BatchView
from rase.backends.base import GENERATED, PAGE_TOKENS, PROMPT, Batch
from rase.engine.kv_cache import ABSENT, SequencePages
from rase.engine.sequence import Sequence
from rase.errors import InvalidSetting

__all__ = ["Batches", "Limits", "Pace", "Rows", "make_batch", "prompt_rows", "share_out", "tokens_of"]

QUANTUM = 32  # fewest prompt tokens that are worth a sequence's place in a step, unless it has no more
BASE_S = 0.19  # of prompt work beside a decode, and as much again as the decode takes


@dataclass(frozen=True)
class Limits:
    """What the scheduler may put together.

    ======================  =============================================================================
    max_batch_tokens        tokens of one step, of both roles; None: what the program was compiled for
    max_batch_seqs          sequences that are computed or held at one time; the others wait
    chunked_prefill_size    prompt tokens of one step; 0: no bound but ``max_batch_tokens``
    enable_prefix_caching   keep full pages for later requests
    max_waiting             requests that may wait; one more raises ``ServerBusy``. None: any number
    ======================  =============================================================================
    """

    max_batch_tokens: int | None = None
    max_batch_seqs: int = 64
    chunked_prefill_size: int = 0
    enable_prefix_caching: bool = True
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_batch_tokens", 1), ("max_batch_seqs", 1), ("chunked_prefill_size", 0),
                            ("max_waiting", 0)):  # fmt: skip
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidSetting(name, expected=f"a whole number, at least {least}", found=repr(value))


class Pace:
    """How long steps take: seconds per prompt token, and of a step that only decodes. Moving averages."""

    def __init__(self) -> None:
        self.decode_s = 0.0
        self.token_s = 0.0

    def note(self, prompt_tokens: int, seconds: float) -> None:
        """A step with ``prompt_tokens`` took ``seconds``."""
        if prompt_tokens == 0:
            self.decode_s = seconds if not self.decode_s else 0.8 * self.decode_s + 0.2 * seconds
        elif prompt_tokens >= QUANTUM // 2:
            each = max(seconds - self.decode_s, 0.1 * seconds) / prompt_tokens
            # Slower counts at once: attention grows along a prompt, and the machine may have got company.
            self.token_s = each if each > self.token_s else 0.7 * self.token_s + 0.3 * each

    def prompt_tokens(self, most: int) -> int:
        """How many prompt tokens a step may take beside a decode."""
        if not self.token_s:
            return min(most, 2 * QUANTUM)
        return min(most, max(QUANTUM, int((BASE_S + self.decode_s) / self.token_s)))


def share_out(remaining: Order[int], budget: int) -> list[int]:
    """Divide ``budget`` prompt tokens among prompts in order of service; each gets at most what remains.

    The first ``budget // QUANTUM`` prompts (at least two) get equal shares, and what one does not need goes
    to the others: a short prompt is through at once, and a long one never waits for all short ones.
    """
    places = min(len(remaining), max(min(2, budget), budget // QUANTUM))
    shares = [0] * len(remaining)
    order = sorted(range(places), key=lambda index: remaining[index])
    for done, index in enumerate(order):
        shares[index] = min(remaining[index], budget // (places - done))
        budget -= shares[index]
    return shares


@dataclass(slots=True)
class Rows:
    """Tokens of one sequence in one step, all of one role: ``tokens[start : start + count]``, then drafts."""

    sequence: Sequence
    start: int
    count: int
    role: int
    drafts: list[int]
    decodes: bool  # one generated token, after those that must run again
    wants_logits: bool

    @classmethod
    def of(cls, sequence: Sequence, most: int) -> Rows:
        """The next tokens of ``sequence``, at most ``most``, of the role of the first of them."""
        start, whole = sequence.computed, len(sequence.tokens)
        prompt = start < sequence.n_prompt
        count = min(most, (sequence.n_prompt if prompt else whole) - start)
        role = PROMPT if prompt else GENERATED
        return cls(sequence, start, count, role, [], False, start + count == whole)

    @property
    def total(self) -> int:
        """Rows of the batch."""
        return self.count + len(self.drafts)

    @property
    def has_pages(self) -> bool:
        """Whether there are pages for all of them."""
        pages = self.sequence.pages
        return pages is not None and pages.room >= self.start + self.count + len(self.drafts)


def prompt_rows(prompts: Order[Sequence], budget: int) -> list[Rows]:
    """Tokens of ``prompts``, which are in order of service: ``budget`` of them in all, see ``share_out``."""
    shares = share_out([sequence.remaining for sequence in prompts], budget)
    return [Rows.of(sequence, share) for sequence, share in zip(prompts, shares, strict=True) if share]


def tokens_of(parts: Order[Rows]) -> tuple[int, int]:
    """How many tokens of a step are of sequences that decode, and how many of prompts. No drafts."""
    decode_tokens = prompt_tokens = 0
    for part in parts:
        if part.decodes:
            decode_tokens += part.count
        else:
            prompt_tokens += part.count
    return decode_tokens, prompt_tokens


class Batches:
    """Makes the batch of each step; where the same sequences decode on, only what has changed is written."""

    def __init__(self) -> None:
        self._batch: Batch | None = None  # of a step in which every sequence decoded one token
        self._view: BatchView | None = None
        self._pages: list[tuple[SequencePages | None, int]] = []  # of each sequence, and which state of them

    def make(self, parts: list[Rows]) -> Batch:
        """The batch of ``parts``, which are in order of role. It may be changed when the next one is made."""
        for part in parts:
            if not part.decodes or part.count > 1 or part.drafts:
                self._batch = None
                return make_batch(parts)
        if self._batch is None or not self._goes_on(self._batch, parts):
            self._batch, self._view = make_batch(parts), None
            self._pages = [(pages := part.sequence.pages, pages.changes if pages else 0) for part in parts]
        return self._batch

    def _goes_on(self, batch: Batch, parts: list[Rows]) -> bool:
        """Make ``batch`` that of ``parts``; False where they are of others, or need longer page tables."""
        if len(parts) != len(self._pages):
            return False
        view = self._view = self._view or BatchView(batch)
        for row, part in enumerate(parts):
            pages, changes = self._pages[row]
            if pages is None or pages is not part.sequence.pages:
                return False
            if pages.changes != changes:
                if max(map(len, pages.tables), default=0) > batch.page_tables.shape[2]:
                    return False
                for places, table in zip(batch.page_tables[:, row], pages.tables, strict=True):
                    places[: len(table)], places[len(table) :] = table, ABSENT
                self._pages[row] = pages, pages.changes
            view.put(row, part.sequence.tokens[-1], part.start)
        return True


def make_batch(parts: list[Rows]) -> Batch:
    """The batch of ``parts``, which are in order of role; page tables as wide as the longest sequence."""
    n = sum(part.total for part in parts)
    tables = [part.sequence.pages.tables for part in parts if part.sequence.pages is not None]
    longest = max(part.start + part.total for part in parts)
    width = max((len(table) for groups in tables for table in groups), default=-(-longest // PAGE_TOKENS))
    ids, positions = np.empty(n, np.int32), np.empty((1, n), np.int32)
    sequences, roles = np.empty(n, np.int32), np.empty(n, np.uint8)
    page_tables = np.full((len(tables[0]), len(parts), width), ABSENT, np.int32)
    wanted: list[int] = []
    at = 0
    for number, part in enumerate(parts):
        end = at + part.total
        ids[at:end] = [*part.sequence.tokens[part.start : part.start + part.count], *part.drafts]
        positions[0, at:end] = np.arange(part.start, part.start + part.total)
        sequences[at:end], roles[at:end] = number, part.role
        for group, table in enumerate(tables[number]):
            page_tables[group, number, : len(table)] = table
        if part.wants_logits:
            wanted += range(end - 1 - len(part.drafts), end)
        at = end
    return Batch(ids, positions, sequences, page_tables, roles, np.array(wanted, np.int32))
