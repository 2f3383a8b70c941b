"""``bind`` a socket, and ``Server``: uvicorn's, which ends every request properly when it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from rase.errors import InvalidSetting
from rase.server.access import LOGGER
from rase.server.guard import MAX_HEADERS
from rase.server.protocol import GuardedProtocol
from rase.server.reception import Reception

__all__ = ["Server", "bind"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free one. Raises ``InvalidSetting`` with the reason."""
    if not 0 <= port <= 65535:
        raise InvalidSetting("port", expected="0 to 65535", found=port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]  # fmt: skip
    except (socket.gaierror, UnicodeError):
        raise InvalidSetting("host", expected="a name or address of this machine", found=repr(host)) from None
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere the option would let two servers share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        reasons = {
            errno.EADDRINUSE: (
                "the port is in use",
                "Stop the other program, or take any free port: --port 0.",
            ),
            errno.EACCES: ("this user may not open that port", "Choose a port above 1023."),
            errno.EADDRNOTAVAIL: ("an address of another machine", "Use 127.0.0.1, or 0.0.0.0 for all."),
        }
        number = error.errno or 0
        found, hint = reasons.get(number, (os.strerror(number), "Choose another --host or --port."))
        what = f"cannot listen on {host} port {port}"
        raise InvalidSetting(what, found=found, hint=hint, host=host, port=port) from None
    sock.set_inheritable(False)
    return sock


class Server(uvicorn.Server):
    """uvicorn's server with our drain: requests end by themselves, then by an error event, never by a cut."""

    def __init__(
        self,
        app: Any,
        *,
        drain_s: float = 10.0,
        prepare: Callable[[Callable[[], bool]], object] | None = None,
    ) -> None:
        """``prepare(cancelled)`` is called in a thread once the server listens; what it raises ends the
        server, and is then ``failure``.
        """
        config = uvicorn.Config(
            app, http=GuardedProtocol, ws="none", lifespan="on",
            log_config=None, log_level="error", access_log=False, proxy_headers=False, server_header=False,
            h11_max_incomplete_event_size=MAX_HEADERS, timeout_graceful_shutdown=int(drain_s) + 3,
        )  # fmt: skip
        self._exiting, self._changed = False, asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(config)
        vars(self.server_state).update(
            reception=Reception(self._changed.set), turnstile=getattr(app.state, "turnstile", None)
        )
        self._app, self._drain_s = app, drain_s
        self._prepare = prepare
        self._preparing: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end; may be set from any thread, and in a signal handler."""
        return self._exiting

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._exiting = value
        if value and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._changed.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._prepare is not None and not self.should_exit:
            self._preparing = asyncio.ensure_future(self._run_prepare(self._prepare))

    async def _run_prepare(self, prepare: Callable[[Callable[[], bool]], object]) -> None:
        try:
            await asyncio.to_thread(prepare, lambda: self.should_exit)
        except Exception as error:
            if not self.should_exit:  # else it was told to stop
                self.failure = error
                self.should_exit = True

    async def main_loop(self) -> None:
        """As uvicorn's, which looks at ``should_exit`` and the date ten times a second: this one wakes for
        the end, and once a second for the date while there is a connection.
        """
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            self._changed.clear()
            if not self.should_exit:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0 if self.server_state.connections else None):
                        await self._changed.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the main thread only, and do not raise them again after a clean end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.should_exit = True
        for number in SIGNALS:  # the second signal ends the process, whatever it is doing
            signal.signal(number, signal.SIG_DFL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        LOGGER.info("shutting down: running requests have %g s", self._drain_s)
        self._app.state.runner.begin_drain(self._drain_s)
        # Clients that do not even take the end of their stream are cut a moment later.
        asyncio.get_running_loop().call_later(self._drain_s + 0.5, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
