"""What one step of the model holds: how many prompt tokens, of whom, and the ``Batch`` made of them.

Every sequence that decodes is in every step. Prompt tokens share what is left, so that a long prompt and a
short one both move on; while anyone decodes, they get only as many as fit into a short time, measured as it
goes. How a prompt is cut changes when it is done and never what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence as Order
from dataclasses import dataclass

import numpy as np

from rase.backends.base import GENERATED, PAGE_TOKENS, PROMPT, Batch
from rase.engine.kv_cache import ABSENT, SequencePages
from rase.engine.sequence import Sequence
from rase.errors import InvalidSetting

__all__ = ["Batches", "Limits", "Pace", "Rows", "make_batch", "share_out"]

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
    wants_logits: bool

    @classmethod
    def of(cls, sequence: Sequence, most: int) -> Rows:
        """The next tokens of ``sequence``, at most ``most``, of the role of the first of them."""
        start, whole = sequence.computed, len(sequence.tokens)
        prompt = start < sequence.n_prompt
        count = min(most, (sequence.n_prompt if prompt else whole) - start)
        role = PROMPT if prompt else GENERATED
        return cls(sequence, start, count, role, [], start + count == whole)

    @classmethod
    def next_token(cls, sequence: Sequence) -> Rows:
        """The one token that a sequence which decodes has to compute, after those that must run again."""
        return cls(sequence, sequence.computed, sequence.remaining, GENERATED, [], True)

    @property
    def total(self) -> int:
        """Rows of the batch."""
        return self.count + len(self.drafts)


class Batches:
    """Makes the batch of each step; where the same sequences decode on, only ids and positions are new."""

    def __init__(self) -> None:
        self._batch: Batch | None = None  # of a step in which every sequence decoded one token
        self._tables: list[tuple[SequencePages | None, int]] = []  # what its page tables were made of

    def make(self, parts: list[Rows]) -> Batch:
        """The batch of ``parts``, which are in order of role. It may be changed when the next one is made."""
        tables: list[tuple[SequencePages | None, int]] = []
        for part in parts:
            if part.role == PROMPT or part.count > 1 or part.drafts or not part.wants_logits:
                self._batch = None
                return make_batch(parts)
            pages = part.sequence.pages
            tables.append((pages, 0 if pages is None else pages.changes))
        if self._batch is None or tables != self._tables:
            self._batch, self._tables = make_batch(parts), tables
        else:
            self._batch.ids[:] = [part.sequence.tokens[-1] for part in parts]
            self._batch.positions[0] = [part.start for part in parts]
        return self._batch


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
