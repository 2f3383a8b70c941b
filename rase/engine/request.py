"""``Request``: what a caller hands to the scheduler and keeps: one prompt, one or more choices, one end.

The caller and the driver thread share it without a lock: each field is written by one side, and the driver is
told by a message. Callbacks marked *driver* run on the driver thread between two steps: whatever they do
delays every request of the model, so they post to a queue or a loop and return.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from rase.engine.config import GenerationConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rase.engine.drafts import DraftProposer
    from rase.engine.generation import GenerationStopReason
    from rase.engine.sampler import Sampled

    Choose = Callable[[NDArray[np.float32], int], int | None]

__all__ = ["Request"]


class Request:
    """One prompt and its choices.

    ``on_token(choice, sampled)``  *driver*; returning False ends that choice
    ``on_choice(choice, reason)``  *driver*; the choice has ended
    ``on_done()``                  *driver*; the request has ended, ``error`` says how if not well
    ``cancelled()``                *driver*; asked before each step, True cancels
    ``ahead()``                    *driver*; True while the reader is too far behind; then it calls ``wake``
    ``deadline``                   of ``time.monotonic()``; later the request ends with ``DeadlineExceeded``
    ``priority``                   higher first; within one priority first come, first served
    ``drafts()``                   makes the proposer of one choice
    ``choose(logits, position)``   *driver*; takes the sampler's place: an id, or None to hold the sequence
                                   until ``Scheduler.give``. One choice only
    ``answer``                     generated tokens that precede what is generated now
    ``reuse``                      False: compute everything, and keep nothing in the prefix cache

    What a callback raises ends the request and becomes its ``error``.
    """

    def __init__(
        self, prompt: Sequence[int], config: GenerationConfig, *, n: int = 1,
        on_token: Callable[[int, Sampled], object] | None = None,
        on_choice: Callable[[int, GenerationStopReason], object] | None = None,
        on_done: Callable[[], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
        ahead: Callable[[], bool] | None = None,
        deadline: float | None = None, priority: int = 0,
        drafts: Callable[[], DraftProposer] | None = None,
        choose: Choose | None = None, answer: Sequence[int] = (), reuse: bool = True,
    ) -> None:  # fmt: skip
        self.prompt, self.config, self.n, self.answer = prompt, config, n, answer
        self.on_token, self.on_choice, self.on_done = on_token, on_choice, on_done
        self.cancelled, self.ahead, self.choose, self.drafts = cancelled, ahead, choose, drafts
        self.deadline, self.priority, self.reuse = deadline, priority, reuse
        self.bell: SimpleQueue[None] | None = None  # of the scheduler that has it
        self.stopped = False  # the caller wants no more
        # What the driver writes:
        self.done = False
        self.error: BaseException | None = None
        self.cached_tokens = self.drafted = self.accepted = 0
        self.submitted = self.admitted = self.prompted = self.ended = 0.0  # time.perf_counter(); 0 = not yet
        self._over: SimpleQueue[None] = SimpleQueue()

    def cancel(self) -> None:
        """Stop at the next step; a request that waits leaves the queue. From any thread, any time."""
        self.stopped = True
        self.wake()

    def wake(self) -> None:
        """Let the driver look at this request again. From any thread."""
        if self.bell is not None:
            self.bell.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the request has ended; False after ``timeout`` seconds."""
        if self.done:
            return True
        try:
            self._over.get(timeout=timeout)
        except Empty:
            return self.done
        self._over.put(None)  # for whoever else waits
        return True

    def finish(self, error: BaseException | None = None) -> None:
        """*driver*: the request has ended. Raises what ``on_done`` raises; whoever waits is told all the
        same.
        """
        self.ended, self.error = time.perf_counter(), error
        try:
            if self.on_done is not None:
                self.on_done()
        finally:
            self.done = True
            self._over.put(None)

    @property
    def queue_s(self) -> float:
        """Seconds from the call of ``submit`` to the first step."""
        return max(0.0, (self.admitted or self.ended) - self.submitted)

    @property
    def prompt_s(self) -> float:
        """Seconds from the first step to the logits of the prompt."""
        return max(0.0, self.prompted - self.admitted) if self.prompted else 0.0

    @property
    def ttft_s(self) -> float:
        """Seconds from the call of ``submit`` to the first token."""
        return max(0.0, self.prompted - self.submitted) if self.prompted else 0.0

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the end."""
        return max(0.0, self.ended - self.prompted) if self.prompted else 0.0
