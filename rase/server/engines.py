"""``Engines``: all that the application asks of whoever runs its models.

``rase.server.runner.Runner`` runs them in this process; a cluster hands requests to replicas elsewhere. Both
answer with the same ``Job``, so that reading requests, writing replies and refusing are written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from rase.completion import TextRequest
    from rase.errors import ServerBusy
    from rase.registry import ModelManifest
    from rase.server.job import Job
    from rase.session_cache import LoadedModel

__all__ = ["Engines"]


class Engines(Protocol):
    """Runs requests for models. Its methods, but ``join``, belong on the event loop."""

    @property
    def draining(self) -> bool:
        """Whether no new requests are taken."""

    @property
    def active(self) -> int:
        """Number of requests that wait or run, of all models."""

    @property
    def crowded(self) -> bool:
        """Whether some model's queue is full."""

    async def manifests(self) -> Sequence[ModelManifest]:
        """The models that can be asked for."""

    async def manifest(self, model: str) -> ModelManifest:
        """The one with this id. Raises ``ModelNotFound``, ``InvalidModelId`` or ``ManifestError``."""

    async def admit(self, model: str) -> Job:
        """A job with a place in the queue of ``model``, until it is cancelled or has run.

        Raises ``ModelNotFound``, ``ManifestError`` or ``ServerBusy``.
        """

    def full(self, model: str) -> ServerBusy | None:
        """How ``admit`` would refuse a request for ``model`` because of its queue, or None."""

    def submit(
        self, job: Job, requests: Sequence[TextRequest], *, stream: bool, timeout: float | None = None
    ) -> None:
        """Queue what an admitted job is to do, within ``timeout`` seconds and what any request may take."""

    def keep(self, model: str, seconds: float) -> None:
        """Keep ``model`` loaded for as long after its last use; negative or infinite: for ever."""

    async def faults(self) -> list[str]:
        """Why requests should not come, none when they may. No reason names a model: a probe is no client."""

    async def loaded(self) -> Sequence[LoadedModel]:
        """What is loaded, the last used one first."""

    async def summaries(self) -> list[dict[str, Any]]:
        """The figures of each loaded model for people, see ``rase.server.vitals``."""

    async def families(self) -> list[Metric]:
        """The metrics of the models, see ``rase.server.prometheus``."""

    def begin_drain(self, seconds: float) -> None:
        """Refuse new requests; those under way get ``seconds`` to end and are cancelled then."""

    def close(self) -> None:
        """Cancel everything and tell the threads to end."""

    def join(self, timeout: float = 1.0) -> None:
        """Wait up to ``timeout`` seconds for each thread; belongs off the event loop, after ``close``."""
