"""A small model guesses for a large one: its best next tokens are drafts, which the large one verifies.

Which drafts are right is for the large model's sampler to say, so its answers are those without drafts. The
small one follows each sequence with a decoder of its own: what the large one took is kept, what it refused is
cut off. It reads a prompt in the background; until it has, nothing is proposed.

A draft costs a step of the small model and a row of the large one's next step. It is made while the chance
that it and all before it agree is higher than that, in steps of the large model; both are measured on the
way. Where nothing pays nothing is proposed, but now and then one draft, to see whether it would again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rase.engine.decoder import ProgramDecoder
from rase.engine.speculation import ROW_COST, HitRate
from rase.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rase.engine.scheduler import Scheduler

__all__ = ["DraftModel"]

PRIOR = 0.7  # how often a draft agrees, before anything is known
SELDOM = 32  # tokens between two tries where drafts do not pay
BEHIND = 4  # tokens that it may be behind and still catch up one by one; more are read like a prompt

log = logging.getLogger("rase.engine")


class DraftModel:
    """The ``DraftProposer`` of one sequence, by the model of ``scheduler``, which has the same tokens.

    ``row_cost`` is the cost of a row of the large model, see ``speculation``; ``wait`` makes the prompt part
    of the first call instead of the background.
    """

    def __init__(self, scheduler: Scheduler, row_cost: float = ROW_COST, *, wait: bool = False) -> None:
        self._decoder = ProgramDecoder(scheduler, reuse=True)
        self.row_cost, self._wait = row_cost, wait
        self._ids: list[int] = []  # what the decoder has read
        self._sure = 0  # of them that are known to be the sequence's
        self._logits: NDArray[np.float32] | None = None  # after the last of them
        self._reading = self._broken = False
        self._rate = HitRate(PRIOR)
        self._own_s = self._step_s = 0.0  # of one of its steps; of a step of the large model
        self._left = 0.0  # when it last returned
        self._skipped = 0

    def propose(self, ids: Sequence[int], limit: int) -> list[int]:
        """Drafts for the positions after ``ids``, at most ``limit``."""
        now = time.perf_counter()
        if self._left:
            seconds = now - self._left
            self._step_s = seconds if not self._step_s else 0.8 * self._step_s + 0.2 * seconds
        try:
            if self._broken or self._reading or len(ids) + limit > (self._decoder.context_length or 0):
                return []
            return self._drafts(ids, min(limit, self._worth()))
        except EngineError as error:  # the small model is gone: the large one does without
            log.debug("the draft model proposes no more: %s", type(error).__name__)
            self._broken = True
            return []
        finally:
            self._left = time.perf_counter()

    def feedback(self, proposed: int, accepted: int) -> None:
        """Of ``proposed`` drafts the first ``accepted`` agreed."""
        for _ in range(accepted):
            self._rate.add(True)
        if accepted < proposed:
            self._rate.add(False)

    def _worth(self) -> int:
        """How many drafts are expected to pay."""
        cost = self.row_cost + (self._own_s / self._step_s if self._step_s else 0.0)
        count, chance = 0, self._rate.value
        while chance > cost and count < 16:
            count, chance = count + 1, chance * self._rate.value
        if count:
            return count
        self._skipped += 1
        return int(self._skipped % SELDOM == 0)

    def _drafts(self, ids: Sequence[int], limit: int) -> list[int]:
        if limit < 1 or not self._follow(ids):
            return []
        assert self._logits is not None
        drafts: list[int] = []
        while True:
            drafts.append(int(self._logits[: self._decoder.vocab_size].argmax()))
            if len(drafts) == limit:
                return drafts
            self._read(drafts[-1])

    def _follow(self, ids: Sequence[int]) -> bool:
        """Bring the decoder to the end of ``ids``; False while it reads the prompt."""
        common = self._sure
        while common < min(len(self._ids), len(ids) - 1) and self._ids[common] == ids[common]:
            common += 1  # the last one is read for its logits
        self._sure = common
        if not self._ids or len(ids) - common > BEHIND:
            self._begin(list(ids))
            return self._logits is not None and not self._reading
        if common < len(self._ids):
            self._decoder.truncate(common)
            del self._ids[common:]
        for id in ids[common:]:
            self._read(id)
        return True

    def _read(self, id: int) -> None:
        begin = time.perf_counter()
        self._logits = self._decoder.decode(id)
        self._ids.append(id)
        seconds = time.perf_counter() - begin
        self._own_s = seconds if not self._own_s else 0.8 * self._own_s + 0.2 * seconds

    def _begin(self, ids: list[int]) -> None:
        """Read a whole prompt."""

        def read() -> None:
            try:
                self._logits = self._decoder.prefill(ids)  # of what it read before the cache knows most
                self._ids = ids
            except EngineError as error:
                log.debug("the draft model proposes no more: %s", type(error).__name__)
                self._broken = True
            self._reading = False

        self._ids, self._sure, self._reading = [], 0, True
        if self._wait:
            read()
        else:
            threading.Thread(target=read, name="rase-draft", daemon=True).start()
