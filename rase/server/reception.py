"""``Reception``: requests with a body wait until the event loop has a turn for them; a GET walks past.

A chat costs the loop about half a millisecond before its answer begins. A thousand that come at once must not
be one turn of half a second, in which nobody else gets a word: they enter a few a turn, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Reception"]

ENTER = 4  # requests of one turn of the event loop


class Reception:
    """The queue of one server, which is told of every connection by a call of ``arrived``."""

    def __init__(self, arrived: Callable[[], object] = lambda: None) -> None:
        self.arrived = arrived
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, enter: Callable[[], object]) -> None:
        """Call ``enter`` when its turn comes, on the running loop and never at once."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._let_in)
        self._waiting.append(enter)

    def _let_in(self) -> None:
        for _ in range(min(ENTER, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_in)
