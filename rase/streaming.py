"""``Stream``: a generation that is read piece by piece and stopped when it is dropped; and waiting for one.

Pieces come on the model's driver thread, which never waits for a reader: there is no thread for each stream.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from rase.bell import Bell
from rase.errors import BackendError

if TYPE_CHECKING:
    from rase.completion import Completion, Piece, Prepared
    from rase.running import Running
    from rase.session import ModelSession

__all__ = ["Stream", "finished", "in_thread"]

T = TypeVar("T")


class _Shared:
    """What the driver and the reader share. It knows no ``Stream``: that one can be dropped."""

    def __init__(self, on_event: Callable[[], object] | None) -> None:
        self.texts: deque[str] = deque()
        self.changed = threading.Condition()
        self.left = False  # the reader is gone
        self.done = False
        self.on_event = on_event

    def push(self, piece: Piece) -> bool:
        """*driver*: one more piece; False ends the generation."""
        self._publish(piece.text)
        return not self.left

    def end(self, running: object) -> None:
        """*driver*: no more will come."""
        self._publish(done=True)

    def _publish(self, text: str = "", done: bool = False) -> None:
        with self.changed:
            if text and not self.left:
                self.texts.append(text)
            self.done = self.done or done
            self.changed.notify_all()
        if self.on_event is not None:
            self.on_event()


class Stream:
    """An iterator over the text of one answer.

    The generation never waits for the reader: what it is ahead by is kept, at most the whole answer.
    ``close``, leaving a ``with`` block and dropping the object stop it at the next token. ``completion`` is
    set when the generation has ended; an error of the generation is raised by the iteration.
    """

    def __init__(
        self, session: ModelSession, prepared: Prepared, on_event: Callable[[], object] | None = None
    ) -> None:
        from rase.running import start

        self._shared = _Shared(on_event)
        self._pid = os.getpid()
        self._read: list[str] = []
        self._raised = False
        self._running = start(session, prepared, self._shared.push, on_done=self._shared.end)
        self._running.reading = True  # the model stays loaded until the last piece was read

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if os.getpid() != self._pid:
            raise BackendError("this stream belongs to the parent process", hint="Start one in the child.")
        shared = self._shared
        with shared.changed:
            while not shared.texts and not shared.done:
                shared.changed.wait()
            if shared.texts:
                self._read.append(shared.texts.popleft())
                return self._read[-1]
        self.result()
        raise StopIteration

    def available(self) -> Iterator[str]:
        """The pieces that are there, without waiting."""
        while self._shared.texts:
            self._read.append(self._shared.texts.popleft())
            yield self._read[-1]

    @property
    def ended(self) -> bool:
        """Whether the generation has ended; pieces may be left to read."""
        return self._shared.done

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._shared.done and not self._shared.texts

    @property
    def completion(self) -> Completion | None:
        """The whole result, once the generation has ended."""
        return self._running.completion

    @property
    def text(self) -> str:
        """What has been read so far."""
        return "".join(self._read)

    def result(self) -> Completion | None:
        """Raise the error that ended the generation, if any, else return its result."""
        self._running.reading = False
        if (error := self._running.error) is not None and not (self._raised or self._shared.left):
            self._raised = True  # once; afterwards the iteration is simply over
            raise error
        return self._running.completion

    def close(self) -> None:
        """Stop the generation at the next token; pieces that are not read yet are dropped."""
        self._shared.left = True
        self._running.cancel()
        self._running.reading = False
        with self._shared.changed:
            self._shared.texts.clear()
            self._shared.done = True
            self._shared.changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def in_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises, from a thread of its own: templates and tokenizers take time."""
    bell = Bell()
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))
        bell.ring()

    threading.Thread(target=run, name="rase-prepare", daemon=True).start()
    while not outcome:
        await bell.wait()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def finished(session: ModelSession, prepared: Prepared) -> Completion:
    """Generate and wait for the end without a thread; cancelling the task stops the generation."""
    from rase.running import start

    bell = Bell()
    running: Running = start(session, prepared, on_done=lambda _: bell.ring())
    try:
        while not running.done:
            await bell.wait()
        return running.result()
    finally:
        running.cancel()
