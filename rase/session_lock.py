"""A first-come-first-served lock that can be given up while waiting and never stays held by accident."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rase.errors import Cancelled, SessionBusy

__all__ = ["FifoLock", "Hold"]

POLL_SECONDS = 0.02  # how soon a waiter notices that it was cancelled, or that the holder vanished


class FifoLock:
    """A mutual exclusion whose waiters are served in the order in which they came.

    ``with lock.hold(cancelled):`` enters. The thread that holds the lock cannot take it again: a callback
    that generates on its own session gets ``SessionBusy`` instead of waiting for itself.

    Ctrl-C may strike between any two steps, even on the way into ``__exit__``, so a release can be lost. The
    lock therefore belongs to a :class:`Hold` object that it knows only weakly: when the frame that entered is
    gone, so is the hold, and the lock is free.
    """

    def __init__(self, name: str = "session") -> None:
        self.name = name
        self._mutex = threading.Lock()
        self._queue: deque[weakref.ref[Hold]] = deque()
        self._owner: weakref.ref[Hold] | None = None

    @property
    def queued(self) -> int:
        """Number of threads that wait."""
        return len(self._queue)

    @property
    def locked(self) -> bool:
        """Whether anyone holds the lock now."""
        return self._holder() is not None

    def hold(self, cancelled: Callable[[], bool] | None = None) -> Hold:
        """Return a context manager that waits for its turn; ``cancelled()`` true gives the wait up."""
        return Hold(self, cancelled)

    def _holder(self) -> Hold | None:
        return None if self._owner is None else self._owner()

    def _advance(self) -> None:
        """Give a free lock to the first in the queue that still lives. The caller has the mutex."""
        while self._holder() is None:
            if not self._queue:
                self._owner = None
                return
            self._owner = self._queue.popleft()
            if (holder := self._holder()) is not None:
                holder.turn.set()

    def _enter(self, hold: Hold) -> None:
        with self._mutex:
            holder = self._holder()
            if holder is not None and holder.thread == hold.thread:
                raise SessionBusy(
                    f"{self.name} is already in use by this thread",
                    hint="A callback cannot generate on the session that calls it.")  # fmt: skip
            self._queue.append(weakref.ref(hold))
            self._advance()
        while not hold.turn.wait(POLL_SECONDS):
            if hold.cancelled is not None and hold.cancelled():
                raise Cancelled(f"waiting for {self.name} was cancelled")
            with self._mutex:
                self._advance()

    def _leave(self, hold: Hold) -> None:
        """Take ``hold`` out of the queue, or give the lock on if ``hold`` has it."""
        with self._mutex:
            if self._holder() is hold:
                self._owner = None
            elif (mine := weakref.ref(hold)) in self._queue:
                self._queue.remove(mine)
            self._advance()


class Hold:
    """One use of a :class:`FifoLock` by one thread, as a context manager; not reusable."""

    def __init__(self, lock: FifoLock, cancelled: Callable[[], bool] | None) -> None:
        self._lock, self.cancelled = lock, cancelled
        self.thread, self.turn = threading.get_ident(), threading.Event()

    def __enter__(self) -> Hold:
        try:
            self._lock._enter(self)
            return self
        except BaseException:
            self._lock._leave(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock._leave(self)
