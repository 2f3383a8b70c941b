"""One thread budget for all models of the process: their drivers take turns, step by step.

A step uses every thread that it may have. Two at once would share the cores badly, since each waits for its
own slowest worker; one after the other they get the same share of the machine and neither waits for long.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from queue import SimpleQueue
from types import TracebackType

__all__ = ["TURNS", "Turns"]


class Turns:
    """A context manager for driver threads: one of them is inside at a time, in order of arrival."""

    def __init__(self) -> None:
        self._line: deque[list[SimpleQueue[None]]] = (
            deque()
        )  # the first is inside; the others wait by a queue

    @property
    def contended(self) -> bool:
        """Whether another model waits for its turn."""
        return len(self._line) > 1

    def __enter__(self) -> None:
        turn: list[SimpleQueue[None]] = []
        self._line.append(turn)
        if self._line[0] is turn:
            return
        turn.append(SimpleQueue())
        if self._line[0] is not turn:  # else nobody may have seen the queue
            try:
                turn[0].get()
            except BaseException:  # an interrupt: nobody may wait for this one
                self._line.remove(turn)
                self._call_first()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.popleft()
        if self._line:
            self._call_first()

    def _call_first(self) -> None:
        """Tell whoever is first now, unless it knows already."""
        with contextlib.suppress(IndexError):  # it knew, and may be out again
            self._line[0][0].put(None)


TURNS = Turns()


def _reset_in_child() -> None:
    TURNS.__init__()  # type: ignore[misc]  # whoever was inside does not exist in the child


os.register_at_fork(after_in_child=_reset_in_child)
