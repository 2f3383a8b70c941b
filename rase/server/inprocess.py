"""A transport for HTTP clients that talks to the engine of this process: no socket, no port, no server.

    import openai
    from rase.server import inprocess

    with inprocess.openai_client() as client:            # a stock openai.OpenAI
        client.chat.completions.create(model="smollm2", messages=[...], stream=True)
    async with inprocess.async_openai_client() as client:    # a stock openai.AsyncOpenAI
        ...

``Transport`` fits ``httpx`` and ``httpx2`` clients, synchronous and asynchronous, under asyncio and trio; it
answers whatever ``create_app`` answers, byte for byte, as it comes. The application runs on an event loop of
its own in one thread, so a client may block: the model goes on for as much as a connection would hold, and
for as long as it would. Closing a response stops the work behind it at the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import cache
from importlib import import_module
from typing import Any

from rase.bell import Bell
from rase.errors import BackendError, BackendUnavailable, ModelNotFound
from rase.server.app import create_app

__all__ = ["BASE_URL", "Transport", "async_openai_client", "openai_client"]

BASE_URL = "http://localhost/v1"
ROOM = 64  # writes of the application that may wait for the client


class Transport:
    """Answers the requests of an HTTP client with an ASGI application in this process.

    ``app`` is an application of ``create_app``, or None for one over ``models`` (objects with a ``session``,
    such as what ``rase.load`` returns) or, without any, over the default store. ``close`` ends what runs; an
    ``app`` that was given can be used on.
    """

    def __init__(self, *models: Any, app: Any = None) -> None:
        self._own = app is None
        if app is None:
            shelf = _Shelf([model.session for model in models]) if models else None
            app = create_app(shelf, shelf, api_keys=())
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rase-inprocess", daemon=True)
        self._thread.start()

    def handle_request(self, request: Any) -> Any:
        """Answer the request of a synchronous client of httpx or httpx2."""
        exchange = _Exchange(self, request, request.read())
        inbox: queue.SimpleQueue[None] = queue.SimpleQueue()
        exchange.start(lambda: inbox.put(None))
        library, patience = _library(request), request.extensions.get("timeout", {}).get("read")

        def wait() -> None:
            try:
                inbox.get(timeout=patience)
            except queue.Empty:
                exchange.leave()
                raise library.ReadTimeout("the engine said nothing for so long", request=request) from None

        while not exchange.started():
            wait()
        body = _sync_body(library)(exchange, library, wait)
        return library.Response(exchange.status, headers=exchange.headers, stream=body)

    async def handle_async_request(self, request: Any) -> Any:
        """Answer the request of an asynchronous client of httpx or httpx2, under asyncio or trio."""
        exchange = _Exchange(self, request, await request.aread())
        bell = Bell()
        exchange.start(bell.ring)
        library = _library(request)
        try:
            while not exchange.started():
                await bell.wait()
        except BaseException:  # the task was cancelled
            exchange.leave()
            raise
        body = _async_body(library)(exchange, library, bell)
        return library.Response(exchange.status, headers=exchange.headers, stream=body)

    def close(self) -> None:
        """End what runs and the thread of the event loop. Idempotent."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _shut(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._own:
            self._app.state.runner.close()
            await asyncio.to_thread(self._app.state.runner.join)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start ``work`` on the transport's loop. Raises ``BackendError`` after ``close``."""
        if self._loop.is_closed():
            work.close()
            raise BackendError("this in-process client is closed", hint="Make another one.")
        # In a context of its own: the caller's may say that trio runs.
        contextvars.Context().run(asyncio.run_coroutine_threadsafe, work, self._loop)

    async def aclose(self) -> None:
        """As ``close``, which takes a moment at most."""
        self.close()

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class _Exchange:
    """One request and its answer: the application writes on its loop, the client reads where it is."""

    def __init__(self, transport: Transport, request: Any, body: bytes) -> None:
        self.status, self.headers = 0, []  # type: ignore[var-annotated]
        self.done = self.complete = False
        self._chunks: deque[bytes] = deque()
        self._full = False
        self._room = asyncio.Event()
        self._transport, self._body = transport, body
        self._notify: Callable[[], object] = lambda: None
        self._gone = threading.Event()
        self._left: asyncio.Event | None = None
        url = request.url
        self._scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw], "scheme": url.scheme,
            "path": url.path, "raw_path": url.raw_path.split(b"?")[0], "query_string": url.query,
            "root_path": "", "server": ("127.0.0.1", url.port or 80), "client": ("in-process", 0),
        }  # fmt: skip

    def start(self, notify: Callable[[], object]) -> None:
        """Begin; ``notify`` is called from another thread whenever there is something new."""
        self._notify = notify
        self._transport.run(self._run())

    def started(self) -> bool:
        """Whether status and headers are there. Raises ``BackendError`` when there will be none."""
        if self.status == 0 and self.done:
            raise BackendError("the in-process server ended before it answered")
        return self.status != 0

    def leave(self) -> None:
        """The client wants no more."""
        self._gone.set()
        if self._left is not None and not self.done:
            self._call(self._left.set)
            self._call(self._room.set)

    def take(self) -> Iterator[bytes]:
        """What has come of the body."""
        while self._chunks:
            chunk = self._chunks.popleft()
            if self._full and len(self._chunks) < ROOM:
                self._full = False
                self._call(self._room.set)
            yield chunk

    def _call(self, function: Callable[[], object]) -> None:
        """Let the transport's loop call ``function``, unless it is closed."""
        with contextlib.suppress(RuntimeError):
            self._transport._loop.call_soon_threadsafe(function)

    async def _wait_for_room(self, left: asyncio.Event) -> None:
        while len(self._chunks) >= ROOM and not left.is_set():
            self._room.clear()
            self._full = True  # before looking again: a client that takes something from now on tells
            if len(self._chunks) >= ROOM and not left.is_set():
                await self._room.wait()

    async def _run(self) -> None:
        self._left = left = asyncio.Event()
        if self._gone.is_set():
            left.set()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": self._body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.headers = message.get("headers", [])
                self.status = message["status"]
                self._notify()
                return
            if body := message.get("body"):
                self._chunks.append(body)
                self._notify()
            self.complete = self.complete or not message.get("more_body", False)
            await self._wait_for_room(left)

        try:
            await self._transport._app(self._scope, receive, send)
        finally:
            self.done = True
            self._notify()


class _Body:
    """What comes of an answer, until it is complete."""

    def __init__(self, exchange: _Exchange, library: Any) -> None:
        self._exchange, self._library = exchange, library

    def _end(self) -> None:
        """The application has ended: well, or as a server that closes the connection."""
        if not self._exchange.complete:
            raise self._library.RemoteProtocolError("the answer ended before it was complete")


class _SyncBody(_Body):
    def __init__(self, exchange: _Exchange, library: Any, wait: Callable[[], None]) -> None:
        super().__init__(exchange, library)
        self._wait = wait

    def __iter__(self) -> Iterator[bytes]:
        while True:
            done = self._exchange.done  # before looking: what came until then is there
            yield from self._exchange.take()
            if done:
                self._end()
                return
            self._wait()

    def close(self) -> None:
        self._exchange.leave()


class _AsyncBody(_Body):
    def __init__(self, exchange: _Exchange, library: Any, bell: Bell) -> None:
        super().__init__(exchange, library)
        self._bell = bell

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            done = self._exchange.done
            for chunk in self._exchange.take():
                yield chunk
            if done:
                self._end()
                return
            await self._bell.wait()

    async def aclose(self) -> None:
        self._exchange.leave()


def _library(request: Any) -> Any:
    """httpx or httpx2, whichever made the request."""
    return import_module(type(request).__module__.partition(".")[0])


@cache
def _sync_body(library: Any) -> type[_SyncBody]:
    return type("SyncBody", (_SyncBody, library.SyncByteStream), {})


@cache
def _async_body(library: Any) -> type[_AsyncBody]:
    return type("AsyncBody", (_AsyncBody, library.AsyncByteStream), {})


class _Shelf:
    """A registry and a cache of sessions that are loaded already, and that their owners keep."""

    def __init__(self, sessions: list[Any]) -> None:
        self._sessions = {session.id: session for session in sessions}

    def list(self) -> Any:
        return [session.manifest for session in self._sessions.values()]

    def get(self, id: str) -> Any:
        return self._session(id).manifest

    def get_or_load(self, registry: Any, id: str, device: Any = None, **options: Any) -> Any:
        return self._session(id)

    def sessions(self) -> Any:  # how long they stay is for those who hold them to say
        return []

    def loaded(self) -> Any:
        return []

    def _session(self, id: str) -> Any:
        if id not in self._sessions:
            known = ", ".join(self._sessions)
            raise ModelNotFound(
                f"model '{id}'", expected=f"one of: {known}", hint="GET /v1/models lists them."
            )
        return self._sessions[id]


def openai_client(*models: Any, app: Any = None, **options: Any) -> Any:
    """A stock ``openai.OpenAI`` over the engine of this process; arguments as for ``Transport``.

    ``options`` go to the client. Raises ``BackendUnavailable`` without the package ``openai``.
    """
    return _client("OpenAI", "Client", Transport(*models, app=app), options)


def async_openai_client(*models: Any, app: Any = None, **options: Any) -> Any:
    """As ``openai_client``: an ``openai.AsyncOpenAI``."""
    return _client("AsyncOpenAI", "AsyncClient", Transport(*models, app=app), options)


def _client(name: str, http_name: str, transport: Transport, options: dict[str, Any]) -> Any:
    try:
        import openai
    except ImportError:
        raise BackendUnavailable(
            "the openai client", expected="the package 'openai'", found="it is not installed",
            hint="Install it with: pip install openai") from None  # fmt: skip
    # The client insists on a client of the library that it was built for.
    bases = openai.DefaultHttpxClient.__mro__ + openai.DefaultAsyncHttpxClient.__mro__
    http_client = next(base for base in bases if base.__name__ == http_name)
    given = {"base_url": BASE_URL, "api_key": "unused", "max_retries": 0, **options}
    return getattr(openai, name)(http_client=http_client(transport=transport), **given)
