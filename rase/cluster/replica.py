"""``Replica``: one loaded model in a process of a cluster, which answers what the server asks of it."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator
from typing import Any

from rase import env
from rase.cluster.config import Config
from rase.cluster.wire import Ask, Done, Failed, Message, Pieces
from rase.duration import FOREVER
from rase.errors import BackendError, ManifestError
from rase.selfcheck import self_check
from rase.server import vitals
from rase.server.access import log_failure
from rase.server.prometheus import of_models, of_process
from rase.server.runner import Runner
from rase.session_cache import SessionCache

__all__ = ["Replica"]

CHECK_S = 20.0  # for a scheduler's answer, after which the replica is given up
_SAME = ("sha256", "tokenizer_sha256", "architecture", "context_length", "chat_template")


class Replica:
    """Answers with the lanes of a server without one: an answer has the bits of ``rase serve``."""

    def __init__(self, config: Config, manifest: Any) -> None:
        """Load the model of ``manifest`` from this machine's store and see it work.

        Raises ``ManifestError`` where the store has another model under that id, and what loading raises.
        """
        from rase.store import open_store

        config.enter()
        registry = open_store()
        check_same(manifest, registry.get(manifest.id))
        self.name = manifest.id
        self._cache = SessionCache(keep_alive=FOREVER, budget=env.get("RASE_MEMORY_BUDGET"))
        session = self._cache.get_or_load(registry, manifest.id, config.device)
        self._cache.keep(session, pinned=True)
        if draft := env.get("RASE_DRAFT"):
            session.use_draft(self._cache.get_or_load(registry, draft, config.device))
        self_check(session)
        gc.freeze()  # what stands now stays: a collection that looks at all of it stops everybody
        sys.setswitchinterval(0.0005)  # the event loop waits for a driver's Python no longer than that
        self._runner = Runner(registry, self._cache, device=config.device, queue_limit=config.limit)
        self._runner.request_s = None  # the server's deadline comes with each request

    async def answer(self, ask: Ask) -> AsyncIterator[Message]:
        """Run one request; closing or cancelling the iterator stops it at the model's next step."""
        job = None
        try:
            job = await self._runner.admit(ask.model)
            self._runner.submit(job, ask.requests, stream=ask.stream, timeout=ask.seconds)
            yield await job.ready
            if ask.stream:
                async for pieces in job.pieces():
                    if pieces:
                        yield Pieces(pieces)
            yield Done(await job.done)
        except Exception as error:
            log_failure(error)
            yield Failed.of(error)
        finally:
            if job is not None:
                job.cancel()

    async def tell(self, what: str) -> tuple[str, Any]:
        """The replica's name and its ``faults``, ``loaded``, ``summaries`` or ``families``."""
        if what == "faults":
            return self.name, await vitals.faults(self._cache)
        if what == "loaded":
            return self.name, self._cache.loaded()
        if what == "summaries":
            return self.name, vitals.summaries(self._cache)
        return self.name, [*of_process(), *of_models(self._cache)]

    async def check_health(self) -> None:
        """Called by Serve, which replaces a replica that raises. Raises ``BackendError``."""
        if faults := await vitals.faults(self._cache, CHECK_S):
            raise BackendError("this replica cannot answer", found=faults[0])


def check_same(expected: Any, found: Any) -> None:
    """Whether two machines mean the same model. Raises ``ManifestError``, which says where they differ."""
    for name in _SAME:
        if getattr(expected, name) != getattr(found, name):
            raise ManifestError(
                f"model '{expected.id}' of this machine's store is another one: {name}",
                expected=getattr(expected, name), found=getattr(found, name),
                hint="Register the same files in the same way on every machine.")  # fmt: skip
