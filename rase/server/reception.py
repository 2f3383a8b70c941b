"""``Reception``: requests with a body wait until the event loop has a turn for them; a GET walks past.

A chat costs the loop about half a millisecond before its answer begins. A thousand that come at once must not
be one turn of half a second, in which nobody else gets a word: they enter a few a turn, in order. Whom a full
queue refuses does not enter, and is told as soon as those before it have entered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Reception"]

ENTER = 4  # requests of one turn of the event loop
TURN_S = 0.02  # seconds after which the others have their turn, however many were refused


class Reception:
    """The queue of one server, which is told of every connection by a call of ``arrived``."""

    def __init__(self, arrived: Callable[[], object] = lambda: None) -> None:
        self.arrived = arrived
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, enter: Callable[[], object]) -> None:
        """Call ``enter`` when its turn comes, on the running loop and never at once.

        It returns True for a request that does not enter.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._let_in)
        self._waiting.append(enter)

    def _let_in(self) -> None:
        entered, end = 0, time.monotonic() + TURN_S
        while self._waiting and entered < ENTER:
            entered += self._waiting.popleft()() is not True
            if time.monotonic() > end:
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_in)
