"""``ReplicaEngines``: the application's models are replicas elsewhere, each of which has one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rase import env
from rase.cluster.prefixes import keys_of
from rase.cluster.wire import Ask, Done, Failed, Message, Pieces, Started
from rase.completion import TextRequest
from rase.duration import FOREVER
from rase.errors import BackendError, ModelNotFound, ServerBusy
from rase.server.job import Job, Postbox
from rase.session_cache import LoadedModel

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from rase.registry import ModelManifest

__all__ = ["ReplicaEngines", "Replicas"]

PROBE_S, PATIENCE_S = 1.2, 8.0  # for what replicas tell a probe of themselves, and anybody else


class Replicas(Protocol):
    """All replicas of one model."""

    def answer(self, ask: Ask) -> AsyncGenerator[Message, None]:
        """The answer of one of them; closing it stops the work. Raises ``ReplicaLost``."""

    async def tell(self, what: str, patience_s: float) -> list[tuple[str, Any]]:
        """What each of them says of itself, as far as it does in time; see ``Replica.tell``."""


@dataclass(frozen=True)
class LoadedReplica(LoadedModel):
    """What one replica has loaded."""

    replica: str


class ReplicaEngines:
    """``rase.server.engines.Engines`` over replicas. Its methods, but ``join``, belong on the event loop."""

    def __init__(
        self, manifests: Sequence[ModelManifest], replicas: Mapping[str, Replicas], *, limit: int,
        request_s: float | None = None,
    ) -> None:  # fmt: skip
        """``replicas`` are by id; ``limit`` requests of each model are taken together."""
        self._manifests = {manifest.id: manifest for manifest in manifests}
        self._replicas, self._limit = replicas, limit
        self._request_s: float | None = env.get("RASE_REQUEST_TIMEOUT") if request_s is None else request_s
        self._jobs: dict[str, set[Job]] = {id: set() for id in self._manifests}
        self._tasks: set[asyncio.Task[None]] = set()
        self._postbox: Postbox | None = None
        self.draining = False

    @property
    def active(self) -> int:
        """Number of requests that wait or run."""
        return sum(map(len, self._jobs.values()))

    @property
    def crowded(self) -> bool:
        """Whether some model's queue is full."""
        return any(len(jobs) >= self._limit for jobs in self._jobs.values())

    async def manifests(self) -> Sequence[ModelManifest]:
        """The models that have replicas."""
        return [*self._manifests.values()]

    async def manifest(self, model: str) -> ModelManifest:
        """The manifest of ``model``. Raises ``ModelNotFound``."""
        if model not in self._manifests:
            known = ", ".join(self._manifests)
            raise ModelNotFound(f"model '{model}'", expected=f"one of: {known}", found="none of these")
        return self._manifests[model]

    async def admit(self, model: str) -> Job:
        """A job with a place among the requests of ``model``. Raises ``ModelNotFound`` or ``ServerBusy``."""
        if self.draining:
            raise ServerBusy("the server is shutting down")
        await self.manifest(model)
        if (refusal := self.full(model)) is not None:
            raise refusal
        if self._postbox is None:
            self._postbox = Postbox()
        job = Job(model, self._postbox)
        self._jobs[model].add(job)
        job.withdraw = lambda: self._jobs[model].discard(job)
        return job

    def full(self, model: str) -> ServerBusy | None:
        """How a request for ``model`` is refused now, or None."""
        count = len(self._jobs.get(model, ()))
        if self.draining or count < self._limit:
            return None
        return ServerBusy(
            f"the queue of model '{model}' is full", found=f"{count} requests", hint="Try again later."
        )  # fmt: skip

    def submit(
        self, job: Job, requests: Sequence[TextRequest], *, stream: bool, timeout: float | None = None
    ) -> None:
        """Send what an admitted job is to do to a replica."""
        job.requests, job.stream = requests, stream
        bound = min(timeout or FOREVER, self._request_s or FOREVER)
        left = None
        if bound < FOREVER:
            job.end_within(bound)
            left = max(job.since + bound - time.monotonic(), 0.001)
        ask = Ask(job.model, tuple(requests), stream, left, keys_of(requests[0]))
        task = asyncio.ensure_future(self._carry(job, ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def withdraw() -> None:
            self._jobs[job.model].discard(job)
            task.cancel()

        job.withdraw = withdraw

    async def _carry(self, job: Job, ask: Ask) -> None:
        """Bring what a replica answers to the job."""
        outcome: Any = BackendError("a replica ended an answer without its end")
        try:
            async with contextlib.aclosing(self._replicas[job.model].answer(ask)) as answer:
                async for message in answer:
                    if isinstance(message, Started):
                        job.accept(message)
                    elif isinstance(message, Pieces):
                        for number, piece in message.pieces:
                            job.push(number, piece)
                    elif isinstance(message, Done):
                        outcome = message.completions
                    elif isinstance(message, Failed):
                        outcome = message.error
        except Exception as error:
            outcome = error
        self._jobs[job.model].discard(job)
        job.finish(outcome)

    def keep(self, model: str, seconds: float) -> None:
        """Nothing: a replica keeps its model for as long as it runs."""

    async def faults(self) -> list[str]:
        """A reason for each model without a replica that can answer."""
        told = await asyncio.gather(*(one.tell("faults", PROBE_S) for one in self._replicas.values()))
        sound = [any(not faults for _, faults in answers) for answers in told]
        return [] if all(sound) else ["no replica of a model answers"]

    async def loaded(self) -> Sequence[LoadedModel]:
        """What each replica has loaded."""
        return [
            LoadedReplica(**asdict(model), replica=name)
            for name, models in await self._told("loaded")
            for model in models
        ]

    async def summaries(self) -> list[dict[str, Any]]:
        """The figures of each replica."""
        return [{"replica": name, **one} for name, told in await self._told("summaries") for one in told]

    async def families(self) -> list[Metric]:
        """The metrics of each replica's process and model, with the label ``replica``."""
        from rase.server.prometheus import labelled

        told = await self._told("families")
        return [family for name, families in told for family in labelled(families, replica=name)]

    async def _told(self, what: str) -> list[tuple[str, Any]]:
        told = await asyncio.gather(*(one.tell(what, PATIENCE_S) for one in self._replicas.values()))
        return [answer for answers in told for answer in answers]

    def begin_drain(self, seconds: float) -> None:
        """Refuse new requests; those under way get ``seconds`` to end and are cancelled then."""
        if not self.draining:
            self.draining = True
            asyncio.get_running_loop().call_later(seconds, self.cancel_all)

    async def drain(self, seconds: float) -> None:
        """``begin_drain``, and wait until nothing runs and everybody has been told."""
        self.begin_drain(seconds)
        end = time.monotonic() + seconds + 1.0
        while self.active and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)  # for the last bytes of those that were ended

    def cancel_all(self) -> None:
        """End every request with ``ServerBusy``."""
        for jobs in self._jobs.values():
            for job in list(jobs):
                job.cancel(ServerBusy("the server is shutting down"))

    def close(self) -> None:
        """Cancel everything."""
        self.draining = True
        self.cancel_all()

    def join(self, timeout: float = 1.0) -> None:
        """Nothing: there are no threads."""
