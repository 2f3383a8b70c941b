"""``Job``: one request on its way through a lane, and ``Postbox``: how other threads reach the event loop.

``Job.cancel`` answers whoever waits at once; the work ends with the step that is being computed, and a job
that still waits just leaves the queue. A stream whose reader falls behind is held: the model goes on with the
others, and with this one when the reader has caught up.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rase.completion import Completion, Piece, Running, TextRequest
from rase.errors import DeadlineExceeded
from rase.server.body import ClientGone

__all__ = ["AHEAD", "Job", "Postbox", "Started"]

AHEAD = 64  # pieces that the model may be ahead of a stream's reader, beside what the connection buffers


@dataclass(frozen=True)
class Started:
    """What is known of a prepared request before it runs."""

    model: str
    fingerprint: str


class Postbox:
    """Calls from other threads to the event loop that makes it; what comes close together wakes it once."""

    def __init__(self) -> None:
        self._loop = weakref.ref(asyncio.get_running_loop())
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._rung = False

    def post(self, function: Callable[..., object], *values: object) -> bool:
        """Let the loop call ``function``; False when it is closed and nobody waits any more."""
        self._calls.append((function, values))
        if not self._rung:
            self._rung = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                loop = None
            return loop is not None
        return True

    def _deliver(self) -> None:
        self._rung = False  # before the calls are taken: one that comes now rings again
        while self._calls:
            function, values = self._calls.popleft()
            function(*values)


class Job:
    """One request in a lane: awaited and cancelled on the event loop, worked on by the lane's threads."""

    def __init__(self, model: str, postbox: Postbox) -> None:
        self.model = model
        self.requests: Sequence[TextRequest] = ()
        self.stream = False
        self.ready: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self.stopped = False
        self.since = time.monotonic()
        self.deadline: float | None = None  # of the same clock
        self.withdraw: Callable[[], None] = lambda: None  # takes the job out of its lane
        self.running: list[Running] = []  # one for each prompt
        self._postbox = postbox
        self._pieces: deque[tuple[int, Piece]] = deque()  # (number of the prompt, piece)
        self._more = asyncio.Event()
        self._woken = self._held = self._reminded = False
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        for future in (self.ready, self.done):
            future.add_done_callback(lambda f: f.cancelled() or f.exception())  # nobody may be waiting

    # On the event loop

    def watch(self, receive: Callable[[], Any]) -> None:
        """Cancel the job as soon as its client closes the connection, of which ``receive`` tells."""

        async def until_gone() -> None:
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception:  # a server that raises instead of telling: the client is gone as well
                pass
            self._watcher = None
            self.cancel()

        self._watcher = asyncio.ensure_future(until_gone())

    def end_within(self, seconds: float) -> None:
        """End with ``DeadlineExceeded`` once ``seconds`` have passed since the job was made."""
        self.deadline = self.since + seconds
        left = self.deadline - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(left, self._expire)

    def _expire(self) -> None:
        """While it waits, loads or is being prepared; what runs is ended by its model's scheduler."""
        if not self.running and self.deadline is not None:
            late = time.monotonic() - self.deadline
            self.cancel(DeadlineExceeded("the request did not end in time", late_s=late))

    def cancel(self, error: Exception | None = None) -> None:
        """Stop the work and let whoever waits see ``error``."""
        self.stopped = True
        self.withdraw()
        for running in self.running:
            running.cancel()
        self._settle(error or ClientGone())
        self.close()

    def close(self) -> None:
        """Watch the client and the clock no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def remind(self) -> None:
        """Let the reader of ``pieces`` go on, although there may be nothing."""
        self._reminded = True
        self._more.set()

    async def pieces(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """What a streamed job has brought since the last look, in order, until it is done; [] at a reminder.

        Taking less often than the model computes gives longer lists, and holds the model at ``AHEAD``.
        """
        while True:
            if not (self._pieces or self.done.done()):
                await self._more.wait()
            self._more.clear()
            over = self.done.done()  # before looking: what came until then is there
            found = [self._pieces.popleft() for _ in range(len(self._pieces))]
            if self._held:
                self._held = False
                for running in self.running:
                    running.request.wake()
            if found or self._reminded:
                self._reminded = False
                yield found
            if over:
                return

    def _settle(self, outcome: list[Completion] | Exception) -> None:
        for future in (self.ready, self.done):
            if not future.done():
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                elif future is self.done:
                    self.done.set_result(outcome)
        self._more.set()

    def _accept(self, started: Started) -> None:
        if not self.ready.done():
            self.ready.set_result(started)

    def _wake(self) -> None:
        self._woken = False  # before the event: a piece that arrives now calls again
        self._more.set()

    # On the lane's thread and the model's

    def _post(self, function: Callable[..., object], *values: object) -> None:
        if not self._postbox.post(function, *values):
            self.stopped = True

    def accept(self, started: Started) -> None:
        """Tell that the request can run."""
        self._post(self._accept, started)

    def push(self, number: int, piece: Piece) -> bool:
        """Hand over one piece; False ends the choice."""
        self._pieces.append((number, piece))
        if not self._woken:
            self._woken = True
            self._post(self._wake)
        return not self.stopped

    def ahead(self) -> bool:
        """Whether the reader is so far behind that the model is to go on without this job."""
        self._held = True  # before looking: a reader that takes pieces from now on tells the driver
        self._held = len(self._pieces) >= AHEAD
        return self._held

    def finish(self, outcome: list[Completion] | BaseException) -> None:
        """Tell the result."""
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            outcome = RuntimeError(type(outcome).__name__).with_traceback(outcome.__traceback__)
        self._post(self._settle, outcome)
