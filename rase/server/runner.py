"""Run requests off the event loop: one lane per model, all its requests together, lanes side by side.

A lane has one thread, which loads the model and prepares requests (renders, encodes, checks) in order of
arrival; the model's scheduler runs what is prepared. So a client learns of a bad request while others
generate, and a stream's headers leave before its turn comes. A lane takes as many requests as the scheduler
runs at one time and ``queue_limit`` more; beyond that it raises ``ServerBusy``.

``Job.cancel`` answers whoever waits at once; the work ends with the step that is being computed, and a job
that still waits just leaves the queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rase import env
from rase.completion import Completion, Piece, Prepared, Running, TextRequest, prepare, start
from rase.errors import ServerBusy
from rase.server.body import ClientGone

__all__ = ["QUEUE_LIMIT", "Job", "Runner", "Started"]

QUEUE_LIMIT = 32


@dataclass(frozen=True)
class Started:
    """What is known of a prepared request before it runs."""

    model: str
    fingerprint: str


class Job:
    """One request in a lane: awaited and cancelled on the event loop, worked on by the lane's threads."""

    def __init__(self, model: str, requests: Sequence[TextRequest], stream: bool) -> None:
        self.model, self.requests, self.stream = model, requests, stream
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Started] = self.loop.create_future()
        self.done: asyncio.Future[list[Completion]] = self.loop.create_future()
        self.stopped = False
        self.withdraw: Callable[[], None] = lambda: None  # takes the job out of its lane
        self.running: list[Running] = []  # one for each prompt
        self._pieces: deque[tuple[int, Piece]] = deque()  # (number of the prompt, piece)
        self._more = asyncio.Event()
        self._woken = False
        for future in (self.ready, self.done):
            future.add_done_callback(lambda f: f.cancelled() or f.exception())  # nobody may be waiting

    # On the event loop

    def cancel(self, error: Exception | None = None) -> None:
        """Stop the work and let whoever waits see ``error``."""
        self.stopped = True
        self.withdraw()
        for running in self.running:
            running.cancel()
        self._settle(error or ClientGone())

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces of a streamed job in order, until the job is done."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self.done.done():
                return
            self._more.clear()
            if not self._pieces and not self.done.done():
                await self._more.wait()

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
        try:
            self.loop.call_soon_threadsafe(function, *values)
        except RuntimeError:  # the loop is closed: nobody waits any more
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

    def finish(self, outcome: list[Completion] | BaseException) -> None:
        """Tell the result."""
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            outcome = RuntimeError(type(outcome).__name__).with_traceback(outcome.__traceback__)
        self._post(self._settle, outcome)


class _Lane:
    """The requests of one model, and the thread that prepares them."""

    def __init__(self, model: str, load: Callable[[Job], Any], limit: int) -> None:
        self.model, self._load, self._limit = model, load, limit
        self._change = threading.Condition()
        self.jobs: set[Job] = set()  # accepted and not finished
        self._incoming: deque[Job] = deque()
        self._closed = False
        self.thread = threading.Thread(target=self._work, name=f"rase-prepare-{model}", daemon=True)
        self.thread.start()

    def admit(self, job: Job) -> None:
        with self._change:
            if self._closed:
                raise ServerBusy("the server is shutting down")
            if len(self.jobs) >= self._limit:
                raise ServerBusy(
                    f"the queue of model '{self.model}' is full", found=f"{len(self.jobs)} requests",
                    hint="Try again later.",
                )  # fmt: skip
            job.withdraw = lambda: self._withdraw(job)
            self.jobs.add(job)
            self._incoming.append(job)
            self._change.notify_all()

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _withdraw(self, job: Job) -> None:
        with self._change:
            self.jobs.discard(job)
            if job in self._incoming:
                self._incoming.remove(job)

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._incoming and not self._closed:
                    self._change.wait()
                if not self._incoming:
                    return
                job = self._incoming.popleft()
            if not job.stopped:
                try:
                    self._run(job)
                except BaseException as error:  # the thread outlives whatever a request does to it
                    self._leave(job, error)
            del job  # an idle lane keeps no request and no session alive

    def _run(self, job: Job) -> None:
        session = self._load(job)
        prepared = [prepare(session, request) for request in job.requests]
        job.accept(Started(session.id, session.fingerprint))
        parts = _Parts(len(prepared), lambda outcome: self._leave(job, outcome))
        job.running = [self._start(session, job, parts, number, one) for number, one in enumerate(prepared)]
        if job.stopped or parts.over:  # while the list was not there yet
            for running in job.running:
                running.cancel()
            job.running = []

    def _start(self, session: Any, job: Job, parts: _Parts, number: int, prepared: Prepared) -> Running:
        push = (lambda piece: job.push(number, piece)) if job.stream else None
        return start(session, prepared, push, lambda: job.stopped, lambda running: parts.end(number, running))

    def _leave(self, job: Job, outcome: list[Completion] | BaseException) -> None:
        with self._change:
            self.jobs.discard(job)
        for running in job.running:  # after a fault of one prompt the others are of no use
            running.cancel()
        job.running = []
        job.finish(outcome)


class _Parts:
    """The completions of one job, of which each prompt brings one; the last one, or an error, is the end."""

    def __init__(self, count: int, end: Callable[[list[Completion] | BaseException], None]) -> None:
        self._completions: list[Completion | None] = [None] * count
        self._end = end
        self.over = False

    def end(self, number: int, running: Running | None) -> None:
        """One prompt is through."""
        if self.over or running is None:
            return
        self._completions[number] = running.completion
        found = [completion for completion in self._completions if completion is not None]
        if running.error is not None or len(found) == len(self._completions):
            self.over = True
            self._end(running.error or found)


class Runner:
    """All lanes of a server. Its methods, but ``join``, belong on the event loop."""

    def __init__(
        self, registry: Any, cache: Any, *, device: Any = "auto", queue_limit: int = QUEUE_LIMIT
    ) -> None:
        self.registry, self.cache, self.device, self.queue_limit = registry, cache, device, queue_limit
        self._lanes: dict[str, _Lane] = {}
        self._draining = False

    async def submit(self, model: str, requests: Sequence[TextRequest], *, stream: bool) -> Job:
        """Queue a request; raises ``ModelNotFound``, ``ManifestError`` or ``ServerBusy``."""
        if self._draining:
            raise ServerBusy("the server is shutting down")
        if model not in self._lanes:  # only models that exist get a lane; later requests are checked at load
            await asyncio.to_thread(self.registry.get, model)
        lane = self._lanes.get(model)
        if lane is None:
            together = env.get("RASE_MAX_BATCH_SEQS")
            lane = self._lanes[model] = _Lane(model, self._session, together + self.queue_limit)
        job = Job(model, requests, stream)
        lane.admit(job)
        return job

    def _session(self, job: Job) -> Any:
        return self.cache.get_or_load(self.registry, job.model, self.device, cancelled=lambda: job.stopped)

    @property
    def active(self) -> int:
        """Number of requests that wait or run, of all models."""
        return sum(len(lane.jobs) for lane in self._lanes.values())

    def begin_drain(self, seconds: float) -> None:
        """Refuse new requests; those under way get ``seconds`` to end and are cancelled then."""
        if not self._draining:
            self._draining = True
            asyncio.get_running_loop().call_later(seconds, self.cancel_all)

    def cancel_all(self) -> None:
        """End every request with ``ServerBusy``."""
        for lane in self._lanes.values():
            for job in list(lane.jobs):
                job.cancel(ServerBusy("the server is shutting down"))

    def close(self) -> None:
        """Cancel everything and tell the threads to end."""
        self._draining = True
        self.cancel_all()
        for lane in self._lanes.values():
            lane.close()

    def join(self, timeout: float = 1.0) -> None:
        """Wait up to ``timeout`` seconds for each thread; belongs off the event loop, after ``close``."""
        for lane in self._lanes.values():
            lane.thread.join(timeout)
