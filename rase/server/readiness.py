"""``Readiness``: whether requests should come here: what was to be loaded is, and every driver goes round."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from rase.server.engines import Engines

__all__ = ["Readiness"]


class Readiness:
    """What ``/ready`` says of ``engines``. Reasons name no model: a probe is no client."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._expected: set[str] = set()

    @contextlib.contextmanager
    def loading(self, models: Collection[str]) -> Iterator[None]:
        """Not ready before the block that loads ``models`` is left without an error."""
        self._expected = set(models)
        yield
        self._expected = set()

    async def reasons(self) -> list[str]:
        """Why requests should not come; none when they may."""
        found = []
        if self._engines.draining:
            found.append("the server is shutting down")
        if self._expected:
            found.append("models are being loaded")
        return found + await self._engines.faults()
