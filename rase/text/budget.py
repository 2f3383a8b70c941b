"""Budget: how much work and memory one rendering of a chat template may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

__all__ = ["MAX_OUTPUT", "MAX_TEXT", "Budget", "OverBudget", "current", "spending"]

MAX_OUTPUT = 16 * 2**20  # characters of one rendered prompt, and of any one string on the way
MAX_TEXT = 8 * MAX_OUTPUT  # characters of all strings that a rendering makes
MAX_STEPS = 500_000  # loop rounds, calls, operations, elements of containers
MAX_SECONDS = 1.0  # processor time of the rendering thread: a busy machine does not fail a good template


class OverBudget(Exception):
    """A template that asks for too much."""


class Budget:
    """Counts steps and characters. Both limits are exact, so the same template fails at the same place
    everywhere; the time limit is only a backstop."""

    def __init__(self) -> None:
        self._steps, self._text = MAX_STEPS, MAX_TEXT
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Account for ``count`` steps. Raises ``OverBudget``."""
        self._steps -= count
        if self._steps < 0:
            raise OverBudget(f"more than {MAX_STEPS:,} steps")
        if time.thread_time() > self._deadline:
            raise OverBudget(f"more than {MAX_SECONDS:g} seconds of processor time")

    def text(self, length: int) -> None:
        """Account for a string of ``length`` characters, before it is made if its length is known.

        Raises ``OverBudget``.
        """
        if length > MAX_OUTPUT:
            raise OverBudget(f"a text of more than {MAX_OUTPUT:,} characters")
        self._text -= length
        if self._text < 0:
            raise OverBudget(f"more than {MAX_TEXT:,} characters of text in all")
        self.step()

    def value(self, value: object) -> int:
        """Account for a value by its full extent and return the characters that printing it can take.

        A container that is reachable twice counts twice: small structures can print and compare as huge ones.
        """
        if isinstance(value, str):
            self.text(len(value))
            return len(value)
        size, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            self.step()
            if isinstance(item, str):
                size += len(item) + 4
            elif isinstance(item, Mapping):
                waiting.extend(item.keys())
                waiting.extend(item.values())
                self.step(len(item))
            elif isinstance(item, (list, tuple, set, frozenset)):
                waiting.extend(item)
                self.step(len(item))
            elif isinstance(item, Namespace):
                waiting.append(object.__getattribute__(item, "_Namespace__attrs"))
            elif isinstance(item, int) and item.bit_length() > 1024:
                raise OverBudget("a number of more than 1,024 bits")
            elif isinstance(item, LoopContext):
                pass
            size += 32
        self.text(size)
        return size


_local = threading.local()


def current() -> Budget:
    """The budget of the rendering that this thread does. Raises ``OverBudget`` outside of one."""
    budget: Budget | None = getattr(_local, "budget", None)
    if budget is None:
        raise OverBudget("work outside of a rendering")
    return budget


@contextmanager
def spending(budget: Budget) -> Iterator[Budget]:
    """Make ``budget`` the current one of this thread for the length of a ``with`` block."""
    before = getattr(_local, "budget", None)
    _local.budget = budget
    try:
        yield budget
    finally:
        _local.budget = before
