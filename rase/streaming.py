"""``Stream``: a generation in a thread of its own, read piece by piece, stopped when it is dropped."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rase.errors import BackendError

if TYPE_CHECKING:
    from rase.completion import Completion, Piece, Prepared
    from rase.session import ModelSession

__all__ = ["Stream"]

EXIT_SECONDS = 5.0  # how long the interpreter waits at exit for the token that is being computed


class _Shared:
    """What the generating thread and the reader share. It knows no ``Stream``: that one can be dropped."""

    def __init__(self, on_event: Callable[[], object] | None) -> None:
        self.texts: deque[str] = deque()
        self.changed = threading.Condition()
        self.left = threading.Event()  # the reader is gone
        self.done = False
        self.completion: Completion | None = None
        self.error: BaseException | None = None
        self.on_event = on_event

    def publish(self, text: str = "", done: bool = False) -> None:
        with self.changed:
            if text:
                self.texts.append(text)
            self.done = self.done or done
            self.changed.notify_all()
        if self.on_event is not None and not self.left.is_set():
            try:
                self.on_event()
            except RuntimeError:  # the event loop of the reader is closed: nobody is left
                self.left.set()


class Stream:
    """An iterator over the text of one answer.

    The generation never waits for the reader: what it is ahead by is kept, at most the whole answer.
    ``close``, leaving a ``with`` block and dropping the object stop it at the next token. ``completion`` is
    set when the generation has ended; an error of the generation is raised by the iteration.
    """

    def __init__(
        self, session: ModelSession, prepared: Prepared, on_event: Callable[[], object] | None = None
    ) -> None:
        self._shared = _Shared(on_event)
        self._pid = os.getpid()
        self._read: list[str] = []
        # A daemon: an exiting interpreter stops it by `left` and waits a little, not for all its tokens.
        work = (session, prepared, self._shared)
        self._thread = threading.Thread(target=_generate, args=work, name="rase-stream", daemon=True)
        _running[self._thread] = self._shared
        self._thread.start()
        weakref.finalize(self, self._shared.left.set).atexit = False

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
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._shared.done and not self._shared.texts

    @property
    def completion(self) -> Completion | None:
        """The whole result, once the generation has ended."""
        return self._shared.completion

    @property
    def text(self) -> str:
        """What has been read so far."""
        return "".join(self._read)

    def result(self) -> Completion | None:
        """Raise the error that ended the generation, if any, else return its result."""
        if (error := self._shared.error) is not None:
            self._shared.error = None  # raised once; afterwards the iteration is simply over
            raise error
        return self._shared.completion

    def close(self) -> None:
        """Stop the generation at the next token; pieces that are not read yet are dropped."""
        self._shared.left.set()
        with self._shared.changed:
            self._shared.texts.clear()
            self._shared.error = None
            self._shared.done = True
            self._shared.changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_running: weakref.WeakKeyDictionary[threading.Thread, _Shared] = weakref.WeakKeyDictionary()


def _generate(session: ModelSession, prepared: Prepared, shared: _Shared) -> None:
    """The body of the thread."""
    from rase import completion

    def on_piece(piece: Piece) -> object:
        shared.publish(piece.text)
        return not shared.left.is_set()

    try:
        shared.completion = completion.run(session, prepared, on_piece, shared.left.is_set)
    except BaseException as error:  # every error belongs to the reader, who is in another thread
        shared.error = error
    finally:
        shared.publish(done=True)


def _stop_all() -> None:
    """At exit: stop every stream, so that no thread computes while the interpreter is taken down."""
    threads = [(thread, shared) for thread, shared in list(_running.items()) if thread.is_alive()]
    for _, shared in threads:
        shared.left.set()
    for thread, _ in threads:
        thread.join(EXIT_SECONDS)


atexit.register(_stop_all)
