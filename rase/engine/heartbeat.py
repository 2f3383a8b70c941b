"""``Heartbeat``: whether a driver still goes round, told from one that computes a long step.

Nothing beats by itself: whoever wants to know asks, and an idle model sleeps. The driver answers between two
steps. While it computes one, it may be silent for as long as such a step can take on this machine, of which
the pace of earlier steps tells.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from rase.engine.stepping import Pace

__all__ = ["Heartbeat"]

UNKNOWN_S = 60.0  # for a step of a model whose pace is not known yet
FACTOR = 8.0  # how many times longer than expected a step may take: the machine may have got company


class Heartbeat:
    """Of one driver, whose steps have ``pace``."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._busy_until = 0.0  # time.monotonic()
        self._lock = threading.Lock()
        self._asked: tuple[threading.Event, float] | None = None  # the question that is open, and since when

    # The driver

    def waits(self) -> None:
        """A step waits for another model's, which has a heartbeat of its own."""
        self._busy_until = math.inf

    def begins(self, decode_tokens: int, prompt_tokens: int) -> None:
        """A step is being computed."""
        pace = self._pace
        if pace.token_s:
            patience = FACTOR * (pace.decode_s + (decode_tokens + prompt_tokens) * pace.token_s)
        else:
            patience = UNKNOWN_S
        self._busy_until = time.monotonic() + patience

    def ended(self) -> None:
        """The step is over."""
        self._busy_until = 0.0

    # Whoever wants to know

    def answers(self, post: Callable[[Callable[[], object]], None], patience: float) -> bool:
        """Whether the driver takes a message within ``patience`` seconds, or has a step to compute first.

        ``post`` hands the message over. A question that was not answered is not asked again: the next caller
        learns it at once.
        """
        with self._lock:
            if self._asked is None or self._asked[0].is_set():
                self._asked = threading.Event(), time.monotonic()
                post(self._asked[0].set)
            event, since = self._asked
        while not event.wait(0.02):
            now = time.monotonic()
            if now > since + patience and now > self._busy_until:
                return False
            if self._busy_until > now + patience:
                return True
        return True
