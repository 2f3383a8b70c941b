"""``ProgramDecoder``: the one-sequence ``TokenDecoder`` contract, as a view on a ``Scheduler``.

Each call is a message to the driver and a wait for its logits, so decoders and generations share one program.
Unless it is told to ``reuse``, a decoder computes all that it is asked for: it neither uses nor fills the
prefix cache. The sequence keeps
its place in the batch between calls; if it had to give its pages away meanwhile it is computed again, each
token in its own role, and the logits are the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rase.engine.config import GenerationConfig
from rase.engine.generation import TokenDecoder
from rase.engine.request import Request
from rase.engine.tokens import check_ids, outside
from rase.errors import Cancelled, ContextLengthExceeded, InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rase.backends.base import Program
    from rase.engine.kv_cache import PagePool
    from rase.engine.scheduler import Scheduler

__all__ = ["ProgramDecoder"]

_CONFIG = GenerationConfig()
_STEP = object()  # the driver is about to compute: time to ask the hook


class ProgramDecoder(TokenDecoder):
    """One sequence over the program of ``scheduler``.

    ``eos`` is the end token of the file, ``cancelled`` as in ``TokenDecoder``: asked in the caller's thread
    before each step. After any error the decoder is usable: a failed ``prefill`` leaves it empty, a failed
    ``decode`` leaves it as it was. It is not thread-safe; several decoders of one scheduler are.
    """

    def __init__(
        self, scheduler: Scheduler, eos: int | None = None, cancelled: Callable[[], bool] | None = None,
        *, reuse: bool = False,
    ) -> None:  # fmt: skip
        self.scheduler = scheduler
        self.vocab_size = scheduler.vocab_size
        self.context_length: int = scheduler.program.graph.context_length
        self.cancelled = cancelled
        self._rows = scheduler.program.graph.vocab_size
        self._eos, self._reuse = eos, reuse
        self._prompt: list[int] = []
        self._answer: list[int] = []
        self._held: _Held | None = None  # what the driver has of this sequence

    @property
    def program(self) -> Program:
        """The compiled model."""
        return self.scheduler.program

    @property
    def pool(self) -> PagePool:
        """Where the pages come from."""
        return self.scheduler.pool

    @property
    def length(self) -> int:
        """Tokens of the sequence so far."""
        return len(self._prompt) + len(self._answer)

    def eos_token(self) -> int | None:
        """The end token given at construction."""
        return self._eos

    def prefill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Start a new sequence with the prompt ``ids``; return the logits ``(vocab,)`` after its last token.

        Raises ``InvalidRequest`` (empty, or ids outside the vocabulary) and ``ContextLengthExceeded`` before
        any compute and without touching the sequence; ``InsufficientMemory``; ``Cancelled`` by the hook.
        """
        prompt = check_ids(ids, self._rows).tolist()
        if len(prompt) > self.context_length:
            raise ContextLengthExceeded(len(prompt), self.context_length, param="prompt")
        self.close()
        logits = self._logits(prompt, [])
        self._prompt, self._answer = prompt, []
        return logits

    def decode(self, id: int) -> NDArray[np.float32]:
        """Append the generated token ``id``; return the logits ``(vocab,)`` after it.

        Raises ``InvalidRequest`` (id outside the vocabulary, or nothing to continue),
        ``ContextLengthExceeded`` when the context is full, ``InsufficientMemory``.
        """
        if not 0 <= id < self._rows:
            raise outside(id, self._rows)
        if self.length == 0:
            raise InvalidRequest("decode without a prompt", hint="Call prefill first.")
        if self.length >= self.context_length:
            raise ContextLengthExceeded(self.length + 1, self.context_length)
        logits = self._logits(self._prompt, [*self._answer, id])
        self._answer.append(id)
        return logits

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens and release the pages beyond them."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        if length == 0:
            self.close()
            return
        held, self._held = self._held, None  # an interrupt from here on costs the pages, not the tokens
        del self._answer[max(0, length - len(self._prompt)) :]
        del self._prompt[length:]
        if held is not None and not held.request.done:
            self.scheduler.truncate(held.request, length)
            self._held = held

    def close(self) -> None:
        """Release all pages. The program and the pool belong to the scheduler."""
        held, self._held = self._held, None
        self._prompt, self._answer = [], []
        if held is not None and not held.request.done:
            held.request.cancel()

    def _logits(self, prompt: list[int], answer: list[int]) -> NDArray[np.float32]:
        """The logits after ``prompt`` and ``answer``, of which the driver may have all but the last token."""
        held, self._held = self._held, None  # whatever ends this early, the sequence starts afresh
        asks = self.cancelled is not None
        if held is None or held.request.done:
            held = _Held(self.scheduler, prompt, answer, asks, self._reuse)
        else:
            held.request.cancelled = held.tick if asks else None
            self.scheduler.give(held.request, answer[-1])
        while True:
            if self.cancelled is not None and self.cancelled():
                held.request.cancel()
                raise Cancelled("prefill")
            row = held.next()
            if row is not None:
                self._held = held
                return row


class _Held:
    """A request that hands out logits instead of choosing from them; dropping it ends it."""

    def __init__(
        self, scheduler: Scheduler, prompt: list[int], answer: list[int], asks: bool, reuse: bool
    ) -> None:
        events: SimpleQueue[object] = SimpleQueue()

        def choose(row: NDArray[np.float32], position: int) -> None:
            events.put(row)

        def tick() -> bool:
            if events.empty():
                events.put(_STEP)
            return False

        def done() -> None:
            events.put(None)

        self._events, self.tick = events, tick  # the hook costs two changes of thread a step: only if asked
        self.request = Request(
            prompt, _CONFIG, answer=answer, choose=choose, cancelled=tick if asks else None, on_done=done,
            reuse=reuse,
        )  # fmt: skip
        weakref.finalize(self, self.request.cancel).atexit = False
        scheduler.submit(self.request)

    def next(self) -> NDArray[np.float32] | None:
        """The logits, or None when a step begins. Raises the error that ended the request."""
        event = self._events.get()
        if event is _STEP:
            return None
        if event is None:
            raise self.request.error or Cancelled("the sequence has ended")
        return event  # type: ignore[return-value]
