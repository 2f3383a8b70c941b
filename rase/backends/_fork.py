"""OpenMP after a fork: work of the thread that came through the fork runs in a thread that the child made.

An OpenMP runtime keeps a team of workers for each thread that ever opened a parallel region. After a fork the
one thread that survives still believes in its team, whose members stayed in the parent, and the next region
waits for them for ever. A thread that the child creates has no team yet and gets one of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["call", "forks"]

T = TypeVar("T")

forks = 0  # between this process and the one that loaded this module
_survivor: int | None = None  # the thread that came through a fork, in a child
_driver: ThreadPoolExecutor | None = None


def call(work: Callable[..., T], *args: object) -> T:
    """Return ``work(*args)``, computed in this thread unless this thread came through a fork."""
    global _driver
    if threading.get_ident() != _survivor:
        return work(*args)
    if _driver is None:
        _driver = ThreadPoolExecutor(1, "rase-after-fork")
    future = _driver.submit(work, *args)
    try:
        return future.result()
    except BaseException:  # Ctrl-C ends the waiting, not the work: nobody may start more before it is done
        wait([future])
        raise


def _after_fork() -> None:
    global forks, _survivor, _driver
    forks, _survivor, _driver = forks + 1, threading.get_ident(), None


os.register_at_fork(after_in_child=_after_fork)
