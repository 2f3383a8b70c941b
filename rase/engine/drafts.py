"""``DraftProposer``: what guesses the next tokens of a sequence, so that one pass can verify several.

The scheduler runs the pending token and the drafts as generated tokens of one step, samples every row at its
absolute position, and keeps the drafts that agree with what it samples. Tokens and logits are therefore those
without drafts (design rule R4); a proposer only decides how much a step may bring.

A recurrent state cannot forget a token: where a model has states they are copied before drafts run. When a
draft was wrong the copy takes their place, and the tokens that were chosen run again beside the next one,
where they cost rows of a step and no step of their own.
"""

from __future__ import annotations

from collections.abc import Sequence as Order
from typing import TYPE_CHECKING, Protocol

from rase.engine.kv_cache import OutOfPages

if TYPE_CHECKING:
    from rase.engine.observer import Observer
    from rase.engine.prefix_tree import PrefixTree
    from rase.engine.sampler import Row
    from rase.engine.sequence import Sequence
    from rase.engine.stepping import Rows

__all__ = ["DRAFT_ROWS", "DraftProposer", "drafts_each", "keep_states", "verify"]

DRAFT_ROWS = 16  # of a step that verifies drafts: pending tokens and drafts that one pass serves well


class DraftProposer(Protocol):
    """One per choice. Called on the driver thread of the model: quick, and without side effects elsewhere."""

    def propose(self, ids: Order[int], limit: int) -> Order[int]:
        """At most ``limit`` ids that may follow ``ids`` (prompt and answer so far); empty for no guess.

        ``ids`` is the live list of the sequence: it may be read during the call, and neither changed nor
        kept.
        """

    def feedback(self, proposed: int, accepted: int) -> None:
        """Of ``proposed`` drafts the first ``accepted`` were what the sampler chose."""


def drafts_each(sequences: int, rows: int, most: int) -> int:
    """How many drafts each of ``sequences`` may have beside their ``rows`` in a step of at most ``most``."""
    return max(0, (min(DRAFT_ROWS, most) - rows) // sequences) if sequences else 0


def keep_states(parts: Order[Rows]) -> None:
    """Keep the states, if there are any, of sequences with drafts; one without a page for them has none."""
    for part in parts:
        if part.drafts and part.sequence.pages is not None:
            try:
                part.sequence.pages.keep_states(part.start)
            except OutOfPages:
                part.drafts = []


def verify(
    sequence: Sequence, rows: Order[Row], drafts: list[int], tree: PrefixTree | None,
    observer: Observer,
) -> bool:  # fmt: skip
    """Choose a token, and one more after each draft that was right; False when the choice has ended.

    ``rows`` are the logits after the pending token, which does not count as computed yet, and each draft.
    """
    assert sequence.pages is not None
    states = any(sequence.pages.pool.states)  # then what ran counts once it is known to stand
    if not states:
        sequence.advance(1, tree)
    accepted, goes_on = 0, True
    for index, row in enumerate(rows):
        goes_on = sequence.take(row, observer)
        if not goes_on or index == len(drafts) or sequence.tokens[-1] != drafts[index]:
            break
        if not states:
            sequence.advance(1, tree)
        accepted += 1
    if states and goes_on:
        sequence.settle(accepted, accepted == len(drafts), tree)
    if sequence.drafts is not None:
        sequence.drafts.feedback(len(drafts), accepted)
    sequence.request.drafted += len(drafts)
    sequence.request.accepted += accepted
    observer.drafts(sequence.request, len(drafts), accepted)
    return goes_on
