"""``HostWatch``: notice that the server which hosts the application is told to end.

A mounted application hears nothing of it: uvicorn tells only the outermost one, and only after every stream
has ended, which it waits for without bound.
"""

from __future__ import annotations

import asyncio
import signal

from rase.server.engines import Engines

__all__ = ["HostWatch"]

LOOK_S = 0.5


class HostWatch:
    """Drains ``engines`` within ``drain_s`` seconds once the host ends; looks only while something runs."""

    def __init__(self, engines: Engines, drain_s: float) -> None:
        self._engines, self._drain_s = engines, drain_s
        self._watching = False

    def watch(self) -> None:
        """A stream begins."""
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._watching = False
        if _told_to_end():
            self._engines.begin_drain(self._drain_s)
        elif self._engines.active:
            self.watch()


def _told_to_end() -> bool:
    """Whether the process's signals go to a uvicorn server that has been told to end."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
