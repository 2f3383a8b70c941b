"""``Scheduler``: all requests of one model in one batch, on one driver thread.

Callers hand requests over by message and never compute: the driver wakes, takes what came, and runs one step
of ``Batching`` after the other until nothing is left to do. Then it sleeps in a queue and knows the scheduler
only weakly: an unused model is freed with its last user. Nothing that a caller does holds a lock while the
model computes, so an interrupt can strike a caller at any moment and nobody else notices.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Order
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from rase import env
from rase.engine.batching import Batching
from rase.engine.disk_tier import DiskTier
from rase.engine.observer import Observer
from rase.engine.request import Request
from rase.engine.stepping import Limits
from rase.engine.tokens import check_ids
from rase.errors import (
    BackendError,
    Cancelled,
    ContextLengthExceeded,
    InvalidRequest,
    ServerBusy,
    SessionBusy,
)

if TYPE_CHECKING:
    from rase.backends.base import Program
    from rase.engine.kv_cache import PagePool
    from rase.engine.page_files import PageFiles

__all__ = ["Limits", "Scheduler", "limits_from_env"]

log = logging.getLogger("rase.engine")

ASK_S = 0.02  # how soon a hook is asked while all requests wait for their readers
EXIT_S = 5.0  # how long the interpreter waits at exit for the step that is being computed

T = TypeVar("T")


class Scheduler:
    """Runs the requests of one program. Its methods may be called from any thread but the driver.

    ``vocab_size`` is the number of ids that may be chosen (default: all rows of the logits); ``name`` appears
    in errors and in the name of the thread. The program and the pool belong to the driver from now on.
    """

    def __init__(
        self, program: Program, pool: PagePool, *, vocab_size: int | None = None,
        limits: Limits | None = None, observer: Observer | None = None, name: str = "model",
    ) -> None:  # fmt: skip
        rows = program.graph.vocab_size
        self.program, self.pool, self.name = program, pool, name
        self.vocab_size: int = rows if vocab_size is None else min(vocab_size, rows)
        self.limits = limits or Limits()
        self._batching = Batching(program, pool, self.vocab_size, self.limits, observer or Observer())
        self._inbox: SimpleQueue[Request | Callable[[], object]] = SimpleQueue()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._gate = threading.Lock()
        self._only_one = threading.Lock()  # held by the driver as long as it lives
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        _schedulers.add(self)
        weakref.finalize(self, self._bell.put, None).atexit = False  # the driver wakes, and ends

    # Callers

    @property
    def observer(self) -> Observer:
        """Who is told about the work; may be replaced at any time."""
        return self._batching.observer

    @observer.setter
    def observer(self, observer: Observer) -> None:
        self._batching.observer = observer

    @property
    def waiting(self) -> int:
        """Requests and choices without a place in the batch."""
        return self._inbox.qsize() + len(self._batching.waiting)

    @property
    def running(self) -> int:
        """Sequences that have a place in the batch."""
        return len(self._batching.active)

    def answers(self, patience: float = 1.0) -> bool:
        """Whether the driver goes round: it takes a message within ``patience`` seconds, or computes a step
        that may take longer. Waits for as long.
        """
        return self._batching.heartbeat.answers(self._post, patience)

    def submit(self, request: Request) -> None:
        """Hand ``request`` over; it runs when its turn comes.

        Raises before any compute: ``InvalidRequest`` (no prompt, ids outside the vocabulary),
        ``InvalidGenerationConfig``, ``ContextLengthExceeded``, ``InsufficientMemory`` (it does not fit even
        alone), ``ServerBusy`` (the queue is full), ``SessionBusy`` (from a callback of this scheduler) and
        ``BackendError`` (after a fork, or after ``close``).
        """
        self._check_caller()
        rows, context = self.program.graph.vocab_size, self.program.graph.context_length
        prompt = check_ids(request.prompt, rows)
        request.config.check_vocab(self.vocab_size)
        known, room = len(prompt) + len(request.answer), 0 if request.choose else 1
        if known + room > context:
            raise ContextLengthExceeded(known, context, param="prompt")
        if request.choose and request.n != 1:
            raise InvalidRequest("n", expected="1 choice with a chooser", found=request.n, param="n")
        self.pool.check_fits(known + room)
        request.prompt = prompt.tolist()
        request.bell, request.submitted = self._bell, time.perf_counter()
        with self._gate:
            limit = self.limits.max_waiting
            if limit is not None and self.waiting + self.running >= limit + self.limits.max_batch_seqs:
                raise ServerBusy(
                    f"the queue of {self.name} is full", found=f"{self.waiting} waiting requests",
                    hint="Try again later.")  # fmt: skip
            self._inbox.put(request)
        self._wake()

    def give(self, request: Request, id: int) -> None:
        """The next token of a request whose ``choose`` returned None."""
        self._post(lambda: self._batching.give(request, id))

    def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the driver, between two steps; return what it returns, or raise its error."""
        self._check_caller()
        answer: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answer.put((function(), None))
            except BaseException as error:
                answer.put((None, error))

        self._post(run)
        result, error = answer.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def truncate(self, request: Request, length: int) -> None:
        """Forget the tokens of a held request beyond ``length``."""

        def cut() -> None:
            for sequence in self._batching.live.get(request, ()):
                sequence.truncate(length)

        self.call(cut)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; pages that sequences use stay with them."""

        def clear() -> None:
            if self._batching.tree is not None:
                self._batching.tree.clear()

        self.call(clear)

    def keep_prefixes(self, files: PageFiles, identity: Order[object]) -> DiskTier | None:
        """Keep the pages of the prefix cache in ``files`` as well. None without a prefix cache.

        ``identity`` names the weights and all else that decides what pages hold, beside what the program says
        of itself.
        """
        tree = self._batching.tree
        if tree is not None:
            tree.disk = DiskTier(files, self.program, identity)
        return None if tree is None else tree.disk

    def close(self) -> None:
        """End all requests with ``Cancelled`` and take no more."""
        self._closed = True
        self._bell.put(None)

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise BackendError(
                f"{self.name} was loaded before this process was forked",
                hint="Load it again in the child (a SessionCache does), or start workers with 'spawn'.",
            )
        if self._thread is threading.current_thread():
            raise SessionBusy(
                f"{self.name} is computing for this very thread",
                hint="A callback of a generation cannot use the model that calls it: post to a queue.",
            )
        if self._closed:
            raise BackendError(f"{self.name} is closed", hint="Load it again.")

    def _post(self, message: Callable[[], object]) -> None:
        self._inbox.put(message)
        self._wake()

    def _wake(self) -> None:
        self._bell.put(None)
        if self._thread is None or not self._thread.is_alive():
            # Two callers may come at once, or an interrupt: then a second thread starts, and ends at once.
            work = (weakref.ref(self), self._bell, self._only_one)
            thread = threading.Thread(target=_drive, args=work, name=f"rase-engine-{self.name}", daemon=True)
            thread.start()

    # The driver

    def _work(self) -> None:
        """Step until there is nothing to do."""
        self._thread = threading.current_thread()
        batching = self._batching
        while True:
            if not self._bell.empty():
                _drain(self._bell)
            if not self._inbox.empty():
                self._take_in()
            if self._closed:
                for request in list(batching.live):
                    batching.fail(request, Cancelled(f"{self.name} was closed"))
            if not batching.step():
                if not batching.asks():
                    return
                self._sleep()

    def _take_in(self) -> None:
        """Take the requests that were handed over, and do what was asked for."""
        with self._gate:  # a request counts as waiting in the inbox, or in the batching: never in both
            messages = _drain(self._inbox)
            for message in messages:
                if isinstance(message, Request):
                    self._batching.add(message)
        for message in messages:
            if not isinstance(message, Request):
                message()

    def _sleep(self) -> None:
        """Wait for a message, and look at hooks and deadlines of those who wait for their readers."""
        try:
            self._bell.get(timeout=ASK_S)
        except Empty:
            return


def limits_from_env() -> Limits:
    """The limits that the environment variables of ``rase.env`` state."""
    return Limits(
        max_batch_seqs=env.get("RASE_MAX_BATCH_SEQS"),
        chunked_prefill_size=env.get("RASE_CHUNKED_PREFILL_SIZE"),
        enable_prefix_caching=env.get("RASE_PREFIX_CACHING"),
    )


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


def _drive(owner: weakref.ref[Scheduler], bell: SimpleQueue[None], only_one: threading.Lock) -> None:
    """The body of the thread: it keeps the scheduler alive only while there is work."""
    if not only_one.acquire(blocking=False):
        return
    try:
        while True:
            bell.get()
            scheduler = owner()
            if scheduler is None:
                return
            try:
                scheduler._work()
            except BaseException as error:  # a fault of ours: it ends what runs, not what comes later
                log.exception("the driver of %s failed", scheduler.name)
                for request in list(scheduler._batching.live):
                    scheduler._batching.fail(request, error)
            del scheduler
    finally:
        only_one.release()


def _drain(queue: SimpleQueue[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        while True:
            found.append(queue.get_nowait())
    except Empty:
        return found


def _close_all() -> None:
    """At exit: no thread may compute while the interpreter is taken down."""
    for scheduler in list(_schedulers):
        if scheduler._pid == os.getpid() and scheduler._batching.live:
            scheduler.close()
            deadline = time.monotonic() + EXIT_S
            while scheduler._batching.live and time.monotonic() < deadline:
                time.sleep(0.002)


atexit.register(_close_all)
