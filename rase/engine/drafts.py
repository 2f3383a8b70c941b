"""``DraftProposer``: what guesses the next tokens of a sequence, so that one pass can verify several.

The scheduler runs the pending token and the drafts as generated tokens of one step, samples every row at its
absolute position, and keeps the drafts that agree with what it samples. Tokens and logits are therefore those
without drafts (design rule R4); a proposer only decides how much a step may bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["DraftProposer"]


class DraftProposer(Protocol):
    """One per choice. Called on the driver thread of the model: quick, and without side effects elsewhere."""

    def propose(self, ids: Sequence[int], limit: int) -> Sequence[int]:
        """At most ``limit`` ids that may follow ``ids`` (prompt and answer so far); empty for no guess.

        ``ids`` is the live list of the sequence: it may be read during the call, and neither changed nor
        kept.
        """

    def feedback(self, proposed: int, accepted: int) -> None:
        """Of ``proposed`` drafts the first ``accepted`` were what the sampler chose."""
