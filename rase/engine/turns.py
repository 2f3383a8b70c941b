"""One thread budget for all models of the process: their drivers take turns, step by step.

A step uses every thread that it may have. Two at once would share the cores badly, since each waits for its
own slowest worker; one after the other they get the same share of the machine and neither waits for long.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import SimpleQueue
from types import TracebackType

__all__ = ["TURNS", "Turns"]


class Turns:
    """A context manager for driver threads: one of them is inside at a time, in order of arrival."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._taken = False
        self._waiting: deque[SimpleQueue[None]] = deque()

    @property
    def contended(self) -> bool:
        """Whether another model waits for its turn."""
        return bool(self._waiting)

    def __enter__(self) -> None:
        with self._gate:
            if not self._taken:
                self._taken = True
                return
            turn: SimpleQueue[None] = SimpleQueue()
            self._waiting.append(turn)
        turn.get()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._gate:
            if self._waiting:
                self._waiting.popleft().put(None)
            else:
                self._taken = False


TURNS = Turns()


def _reset_in_child() -> None:
    TURNS.__init__()  # type: ignore[misc]  # whoever was inside does not exist in the child


os.register_at_fork(after_in_child=_reset_in_child)
