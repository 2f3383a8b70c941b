"""``DraftProposer``: what guesses the next tokens of a sequence, so that one pass can verify several.

The scheduler runs the pending token and the drafts as generated tokens of one step, samples every row at its
absolute position, and keeps the drafts that agree with what it samples. Tokens and logits are therefore those
without drafts (design rule R4); a proposer only decides how much a step may bring.
"""

from __future__ import annotations

from collections.abc import Sequence as Order
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rase.engine.observer import Observer
    from rase.engine.prefix_tree import PrefixTree
    from rase.engine.sampler import Row
    from rase.engine.sequence import Sequence

__all__ = ["DRAFT_ROWS", "DraftProposer", "drafts_each", "verify"]

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


def drafts_each(sequences: int, most: int) -> int:
    """How many drafts each of ``sequences`` may have in a step of at most ``most`` rows."""
    return max(0, min(DRAFT_ROWS, most) // sequences - 1) if sequences else 0


def verify(
    sequence: Sequence, rows: Order[Row], drafts: list[int], tree: PrefixTree | None,
    observer: Observer,
) -> bool:  # fmt: skip
    """Choose a token, and one more after each draft that was right; False when the choice has ended.

    ``rows`` are the logits after the pending token and after each draft.
    """
    accepted, goes_on = 0, True
    for index, row in enumerate(rows):
        goes_on = sequence.take(row, observer)
        if not goes_on:
            break
        if index == len(drafts) or sequence.tokens[-1] != drafts[index]:
            break
        sequence.advance(1, tree)
        accepted += 1
    if sequence.drafts is not None:
        sequence.drafts.feedback(len(drafts), accepted)
    sequence.request.drafted += len(drafts)
    sequence.request.accepted += accepted
    observer.drafts(sequence.request, len(drafts), accepted)
    return goes_on
