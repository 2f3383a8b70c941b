"""Run the server: bind, say where it listens, serve until a signal, end streams properly, leave.

The first SIGINT or SIGTERM stops accepting, lets running requests go on for ``drain_s`` seconds, ends what is
left with an error event, and returns 0. The second ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import uvicorn

from rase import env
from rase.errors import InvalidSetting
from rase.server.access import LOGGER, SingleLineFormatter
from rase.server.app import create_app
from rase.server.guard import MAX_HEADERS
from rase.server.protocol import GuardedProtocol
from rase.server.reception import Reception
from rase.server.runner import QUEUE_LIMIT
from rase.session_cache import SessionCache

__all__ = ["Server", "bind", "serve"]

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

    def __init__(self, app: Any, *, drain_s: float = 10.0) -> None:
        config = uvicorn.Config(
            app, http=GuardedProtocol, ws="none", lifespan="on",
            log_config=None, log_level="error", access_log=False, proxy_headers=False, server_header=False,
            h11_max_incomplete_event_size=MAX_HEADERS, timeout_graceful_shutdown=int(drain_s) + 3,
        )  # fmt: skip
        self._exiting, self._changed = False, asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(config)
        vars(self.server_state)["reception"] = Reception(self._changed.set)
        self._app, self._drain_s = app, drain_s

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


def serve(
    store: Any = None,
    *,
    cache: Any = None,
    models: Collection[str] = (),
    draft: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    device: Any = "auto",
    queue_limit: int = QUEUE_LIMIT,
    drain_s: float = 10.0,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    on_ready: Callable[[str], object] | None = None,
) -> int:
    """Serve the models of ``store`` (a folder, a ``ModelRegistry``, None: the default store) until a signal.

    ``cache`` decides how long models stay and what they may take; None is one of RASE_KEEP_ALIVE and
    RASE_MEMORY_BUDGET. ``models`` are loaded first, and pinned; ``draft`` guesses for them
    (``ModelSession.use_draft``). Prints the address and a line to try on stderr, and calls ``on_ready`` with
    the address. Returns the exit status, 0. Raises ``InvalidSetting`` when the address cannot be used,
    ``StoreError`` for the store, what loading raises, and ``InvalidRequest`` for a draft that cannot guess.
    """
    if cache is None:
        cache = SessionCache(keep_alive=env.get("RASE_KEEP_ALIVE"), budget=env.get("RASE_MEMORY_BUDGET"))
    sock = bind(host, port)
    try:
        app = create_app(
            store, cache, device=device, queue_limit=queue_limit, drain_s=drain_s,
            allowed_hosts=allowed_hosts, allowed_origins=allowed_origins)  # fmt: skip
        _log_to_stderr()
        for model in models:
            print(f"loading {model}", file=sys.stderr, flush=True)
            session = cache.get_or_load(app.state.runner.registry, model, device)
            cache.keep(session, pinned=True)
            if draft is not None:
                session.use_draft(cache.get_or_load(app.state.runner.registry, draft, device))
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{sock.getsockname()[1]}"
        _announce(url, app.state.runner.registry, sock)
        if on_ready is not None:
            on_ready(url)
        sys.setswitchinterval(0.0005)  # the event loop waits for a driver's Python no longer than that
        gc.freeze()  # what stands now stays: a collection that looks at all of it stops everybody
        Server(app, drain_s=drain_s).run(sockets=[sock])
    finally:
        sock.close()
    return 0


def _announce(url: str, registry: Any, sock: socket.socket) -> None:
    ids = [manifest.id for manifest in registry.list()]
    example = ids[0] if ids else "MODEL"
    lines = [
        f"rase serves {len(ids)} model{'' if len(ids) == 1 else 's'} at {url}/v1  (Ctrl-C ends it)",
        f"try: curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{example}", "messages": [{{"role": "user", "content": "Hello"}}]}}\'',
    ]
    if not ids:
        lines.append("No model is registered yet: rase model import FILE --id NAME, or rase model pull.")
    address = sock.getsockname()[0]
    if not (address.startswith("127.") or address == "::1"):
        lines.append("Note: other machines can reach this address, and anyone who does can use the models.")
    print("\n".join(lines), file=sys.stderr, flush=True)


def _log_to_stderr() -> None:
    """One line per request on stderr, unless the process has set up logging by itself."""
    if LOGGER.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SingleLineFormatter("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%d %H:%M:%S"))
    for logger in (LOGGER, logging.getLogger("uvicorn.error")):
        logger.addHandler(handler)
        logger.propagate = False
    LOGGER.setLevel(logging.INFO)
