"""Prompt lookup: guess the next tokens of an answer by copying what followed the same words before.

Summaries that quote, code edits and echoed JSON repeat long parts of prompt and answer. ``PromptLookup``
finds the last place where the newest tokens occurred before and proposes what came after it there. The
scheduler verifies the proposal in one pass; a wrong one costs time, never a bit of the answer.

When is a draft worth its row? While the chance that it *and all drafts before it* agree exceeds what the row
costs, in units of a step with one row. That chance is learnt for each request: whether or not anything is
proposed, the lookup knows which token the copy would have given, and compares it with the one that came. So a
request on which copying does not pay stops proposing, goes on watching at the price of two dictionary
accesses a token, and starts again by itself where copying begins to pay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["MAX_DRAFTS", "ROW_COST", "HitRate", "PromptLookup", "match_before"]

MAX_DRAFTS = 15  # with the pending token 16 rows: the most that one pass over the weights serves well
ROW_COST = 0.25  # of one more row, in steps of one row: 0.2 was measured (SmolLM2, AVX-512), and sampling
ID_BITS = 21  # ids are packed into one integer key; no vocabulary comes near two million
LONG, SHORT = 3, 2  # tokens that a place must have in common with the end; the longer one is preferred
COMMON_MAX = 16  # tokens in common beyond which more say nothing new

# The chance that a copy agrees once more, before anything is known of the request: by tokens in common.
_PRIOR = {0: 0.15, 3: 0.3, 4: 0.5, 6: 0.7, 9: 0.85, 13: 0.92}
_CLASS = [sum(common >= least for least in _PRIOR) - 1 for common in range(COMMON_MAX + 1)]


class HitRate:
    """A share of hits that begins at ``prior`` and forgets: the last 32 or so observations count."""

    WEIGHT = 4.0  # observations that the prior is worth
    KEEP = 1 - 1 / 32

    def __init__(self, prior: float) -> None:
        self._hits, self._tries = prior * self.WEIGHT, self.WEIGHT

    def add(self, hit: bool) -> None:
        """Take one observation into account."""
        self._hits = self._hits * self.KEEP + hit
        self._tries = self._tries * self.KEEP + 1

    @property
    def value(self) -> float:
        """The present estimate, 0 to 1."""
        return self._hits / self._tries


class PromptLookup:
    """The ``DraftProposer`` of one sequence. ``row_cost`` is the cost of one more row, see ``ROW_COST``.

    Work for each token is constant: no search, whatever the length of the sequence.
    """

    def __init__(self, row_cost: float = ROW_COST) -> None:
        self.row_cost = row_cost
        self._long: dict[int, int] = {}  # the last LONG ids, packed: the position after their last occurrence
        self._short: dict[int, int] = {}
        self._read = 0  # ids that are indexed
        self._source = 0  # the position that is copied from; it means something while _common > 0
        self._common = 0  # tokens before it that agree with the end of the sequence
        self._rates = [HitRate(prior) for prior in _PRIOR.values()]

    def propose(self, ids: Sequence[int], limit: int) -> list[int]:
        """Drafts for the positions after ``ids``, at most ``limit``: [] where copying would not pay.

        ``ids`` is the whole sequence; between two calls it only grows.
        """
        self._catch_up(ids)
        drafts: list[int] = []
        common, chance = self._common, 1.0
        if not common:
            return drafts
        for place in range(self._source, self._source + min(limit, MAX_DRAFTS)):
            chance *= self._rates[_CLASS[common]].value
            if chance <= self.row_cost:
                break
            # A copy may run into itself: beyond the end of the sequence stand its own drafts.
            drafts.append(ids[place] if place < len(ids) else drafts[place - len(ids)])
            common = min(common + 1, COMMON_MAX)
        return drafts

    def feedback(self, proposed: int, accepted: int) -> None:
        """Nothing to learn: the tokens themselves say it, see ``propose``."""

    def _catch_up(self, ids: Sequence[int]) -> None:
        if len(ids) - self._read > 64:  # a prompt: at once, the last one token by token for its match
            self._index(ids, len(ids) - 1)
        for end in range(self._read + 1, len(ids) + 1):
            self._push(ids, end)

    def _index(self, ids: Sequence[int], end: int) -> None:
        """Index ``ids[:end]`` without looking for matches."""
        array = np.asarray(ids[:end], np.int64)
        for count, places in ((SHORT, self._short), (LONG, self._long)):
            keys = np.zeros(max(0, end - count + 1), np.int64)
            for offset in range(count):
                keys = keys << ID_BITS | array[offset : offset + len(keys)]
            places |= zip(keys.tolist(), range(count, end + 1), strict=True)
        self._read, self._common = end, 0

    def _push(self, ids: Sequence[int], end: int) -> None:
        """Take ``ids[end - 1]`` into account."""
        newest = ids[end - 1]
        if self._common:
            hit = ids[self._source] == newest
            self._rates[_CLASS[self._common]].add(hit)
            self._source += 1
            self._common = min(self._common + 1, COMMON_MAX) if hit else 0
        self._read = end
        if end < SHORT:
            return
        key = ids[end - 2] << ID_BITS | newest
        found, self._short[key] = self._short.get(key, 0), end
        if end >= LONG:
            key |= ids[end - 3] << 2 * ID_BITS
            longer, self._long[key] = self._long.get(key, 0), end
            found = longer or found
        if not self._common and found:
            self._source, self._common = found, match_before(ids, found, end)


def match_before(ids: Sequence[int], place: int, end: int) -> int:
    """How many tokens before ``place`` equal those before ``end``, up to ``COMMON_MAX``."""
    common = 0
    while common < COMMON_MAX and common < place and ids[place - 1 - common] == ids[end - 1 - common]:
        common += 1
    return common
