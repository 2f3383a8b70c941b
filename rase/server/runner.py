"""Run requests off the event loop: one lane per model, all its requests together, lanes side by side.

A lane has one thread, which loads the model and prepares requests (renders, encodes, checks) in order of
arrival; the model's scheduler runs what is prepared. So a client learns of a bad request while others
generate, and a stream's headers leave before its turn comes. A lane takes as many requests as the scheduler
runs at one time and ``queue_limit`` more; beyond that it raises ``ServerBusy``.

A place in a lane is taken before the request is read: who finds none learns it before any work is done.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rase import env
from rase.completion import Completion, Prepared, Running, TextRequest, prepare, start
from rase.duration import FOREVER
from rase.errors import ServerBusy
from rase.server import vitals
from rase.server.job import Job, Postbox, Started

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from rase.registry import ModelManifest
    from rase.session_cache import LoadedModel

__all__ = ["Runner"]


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
        """Give ``job`` a place, until it is withdrawn or has run; raises ``ServerBusy``."""
        with self._change:
            if self._closed:
                raise ServerBusy("the server is shutting down")
            if (refusal := self.full()) is not None:
                raise refusal
            job.withdraw = lambda: self._withdraw(job)
            self.jobs.add(job)

    def full(self) -> ServerBusy | None:
        """How it refuses who comes now, or None while there is a place."""
        if len(self.jobs) < self._limit:
            return None
        return ServerBusy(
            f"the queue of model '{self.model}' is full", found=f"{len(self.jobs)} requests",
            hint="Try again later.",
        )  # fmt: skip

    def enter(self, job: Job) -> None:
        """Let an admitted job run when its turn comes."""
        with self._change:
            if job in self.jobs:
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
        for running in job.running:  # it may be ahead already, of a reader that could not tell it to go on
            running.request.wake()

    def _start(self, session: Any, job: Job, parts: _Parts, number: int, prepared: Prepared) -> Running:
        push = (lambda piece: job.push(number, piece)) if job.stream else None
        return start(
            session, prepared, push, None, lambda running: parts.end(number, running),
            ahead=job.ahead if job.stream else None, deadline=job.deadline,
        )  # fmt: skip

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
    """All lanes of a server: its ``Engines``. Its methods, but ``join``, belong on the event loop."""

    def __init__(
        self, registry: Any, cache: Any, *, device: Any = "auto", queue_limit: int | None = None,
        request_s: float | None = None,
    ) -> None:  # fmt: skip
        self.registry, self.cache, self.device = registry, cache, device
        self.queue_limit = env.get("RASE_MAX_QUEUE") if queue_limit is None else queue_limit
        self.request_s: float | None = env.get("RASE_REQUEST_TIMEOUT") if request_s is None else request_s
        self._lanes: dict[str, _Lane] = {}
        self._postboxes: weakref.WeakKeyDictionary[Any, Postbox] = weakref.WeakKeyDictionary()
        self.draining = False  # no new requests are taken

    async def admit(self, model: str) -> Job:
        """A job with a place in the lane of ``model``, until it is cancelled or has run.

        Raises ``ModelNotFound``, ``ManifestError`` or ``ServerBusy``.
        """
        if self.draining:
            raise ServerBusy("the server is shutting down")
        if model not in self._lanes:  # only models that exist get a lane; later requests are checked at load
            await asyncio.to_thread(self.registry.get, model)
        lane = self._lanes.get(model)
        if lane is None:
            together = env.get("RASE_MAX_BATCH_SEQS")
            lane = self._lanes[model] = _Lane(model, self._session, together + self.queue_limit)
        job = Job(model, self._postbox())
        lane.admit(job)
        return job

    async def manifests(self) -> Sequence[ModelManifest]:
        """The registered models."""
        found: Sequence[ModelManifest] = await asyncio.to_thread(self.registry.list)
        return found

    async def manifest(self, model: str) -> ModelManifest:
        """The manifest of ``model``. Raises ``ModelNotFound``, ``InvalidModelId`` or ``ManifestError``."""
        found: ModelManifest = await asyncio.to_thread(self.registry.get, model)
        return found

    def full(self, model: str) -> ServerBusy | None:
        """How ``admit`` would refuse a request for ``model`` because of its queue, or None."""
        lane = self._lanes.get(model)
        return None if lane is None or self.draining else lane.full()

    @property
    def crowded(self) -> bool:
        """Whether some model's queue is full."""
        return any(lane.full() is not None for lane in self._lanes.values())

    def submit(
        self, job: Job, requests: Sequence[TextRequest], *, stream: bool, timeout: float | None = None
    ) -> None:
        """Queue what an admitted job is to do, within ``timeout`` seconds and what any request may take."""
        job.requests, job.stream = requests, stream
        bound = min(timeout or FOREVER, self.request_s or FOREVER)
        if bound < FOREVER:
            job.end_within(bound)
        self._lanes[job.model].enter(job)

    def _postbox(self) -> Postbox:
        """The one of the running loop: a host may serve one application from several."""
        loop = asyncio.get_running_loop()
        if loop not in self._postboxes:
            self._postboxes[loop] = Postbox()
        return self._postboxes[loop]

    def _session(self, job: Job) -> Any:
        return self.cache.get_or_load(self.registry, job.model, self.device, cancelled=lambda: job.stopped)

    def keep(self, model: str, seconds: float) -> None:
        """Keep ``model`` loaded for as long after its last use."""
        for session in self.cache.sessions():
            if session.id == model:
                self.cache.keep(session, seconds=seconds)

    async def faults(self) -> list[str]:
        """What keeps loaded models from answering."""
        return await vitals.faults(self.cache)

    async def loaded(self) -> Sequence[LoadedModel]:
        """What is loaded, the last used one first."""
        found: Sequence[LoadedModel] = await asyncio.to_thread(self.cache.loaded)
        return found

    async def summaries(self) -> list[dict[str, Any]]:
        """The figures of each loaded model for people."""
        return await asyncio.to_thread(vitals.summaries, self.cache)

    async def families(self) -> list[Metric]:
        """The metrics of the models."""
        from rase.server.prometheus import of_models

        return await asyncio.to_thread(of_models, self.cache)

    @property
    def active(self) -> int:
        """Number of requests that wait or run, of all models."""
        return sum(len(lane.jobs) for lane in self._lanes.values())

    def begin_drain(self, seconds: float) -> None:
        """Refuse new requests; those under way get ``seconds`` to end and are cancelled then."""
        if not self.draining:
            self.draining = True
            asyncio.get_running_loop().call_later(seconds, self.cancel_all)

    def cancel_all(self) -> None:
        """End every request with ``ServerBusy``."""
        for lane in self._lanes.values():
            for job in list(lane.jobs):
                job.cancel(ServerBusy("the server is shutting down"))

    def close(self) -> None:
        """Cancel everything and tell the threads to end."""
        self.draining = True
        self.cancel_all()
        for lane in self._lanes.values():
            lane.close()

    def join(self, timeout: float = 1.0) -> None:
        """Wait up to ``timeout`` seconds for each thread; belongs off the event loop, after ``close``."""
        for lane in self._lanes.values():
            lane.thread.join(timeout)
