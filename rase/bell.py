"""``Bell``: an event that any thread may ring and one task waits for, under asyncio, trio and so anyio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Bell"]


class Bell:
    """Made inside a task; ``ring`` belongs to any thread, ``wait`` to that task.

    Rings that nobody has heard yet are one ring, so that a thread that rings for every token wakes the event
    loop once. ``cut`` is true when the loop has ended: nobody will hear any more.

    Raises ``RuntimeError`` when no event loop runs.
    """

    def __init__(self) -> None:
        self.cut = False
        self._rung = False
        self._event, self._post = _primitives()

    def ring(self) -> None:
        """Wake the task that waits, or the next one that will."""
        if not self._rung:
            self._rung = True
            try:
                self._post(self._set)
            except RuntimeError:  # asyncio's closed loop; trio.RunFinishedError is one too
                self.cut = True

    def _set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Wait for a ring; what rang before is heard at once. Look at the state *after* this returns."""
        await self._event.wait()
        self._event = type(self._event)()
        self._rung = False  # before the caller looks: what happens from now on rings again


def _primitives() -> tuple[Any, Callable[[Callable[[], None]], object]]:
    """An event of the running library, and how a thread calls a function on its loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if (trio := sys.modules.get("trio")) is None:
            raise
        token = trio.lowlevel.current_trio_token()
        return trio.Event(), token.run_sync_soon
    return asyncio.Event(), loop.call_soon_threadsafe
