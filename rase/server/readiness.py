"""``Readiness``: whether requests should come here: what was to be loaded is, and every driver goes round."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator

from rase.server.runner import Runner

__all__ = ["Readiness"]

PATIENCE_S = 0.6  # for a driver's answer between two steps, which takes a millisecond


class Readiness:
    """What ``/ready`` says of ``runner``. Reasons name no model: a probe is no client."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._expected: set[str] = set()

    @contextlib.contextmanager
    def loading(self, models: Collection[str]) -> Iterator[None]:
        """Not ready before the block that loads ``models`` is left without an error."""
        self._expected = set(models)
        yield
        self._expected = set()

    async def reasons(self) -> list[str]:
        """Why requests should not come; none when they may. Takes ``PATIENCE_S`` seconds at most."""
        found = []
        if self._runner.draining:
            found.append("the server is shutting down")
        if self._expected:
            found.append("models are being loaded")
        schedulers = [
            scheduler
            for session in self._runner.cache.sessions()
            if (scheduler := getattr(session, "scheduler", None)) is not None
        ]
        answers = await asyncio.gather(
            *(asyncio.to_thread(scheduler.answers, PATIENCE_S) for scheduler in schedulers)
        )
        if not all(answers):
            found.append("the scheduler of a model does not answer")
        return found
