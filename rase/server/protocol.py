"""The HTTP/1.1 connection: uvicorn's, with the limits on slow and broken clients that it lacks.

A request head must be complete 10 s after the connection opened or its first byte came (408), and within
64 KiB (431). A client that takes none of its answer for 30 s is cut off. What follows a refused request (a
body that is too large) is thrown away for 5 s and 64 MiB at most, so that the client can read why. Protocol
errors are answered in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from rase.server.access import LOGGER
from rase.server.errors import Refused, error_body
from rase.server.framing import StrictConnection
from rase.server.guard import MAX_HEADERS
from rase.server.reception import Reception
from rase.server.transport import GatheringTransport
from rase.server.turnstile import Turnstile

__all__ = ["GuardedProtocol"]


class GuardedProtocol(H11Protocol):
    """One connection. The limits are class attributes, in seconds and bytes."""

    header_timeout = 10.0
    write_stall = 30.0
    linger_seconds = 5.0
    linger_bytes = 64 << 20
    body_wait = 0.05  # for a body that comes apart from its head, while some queue is full

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reception: Reception = vars(self.server_state).setdefault("reception", Reception())
        self._turnstile: Turnstile | None = vars(self.server_state).get("turnstile")
        self._waiting: bytearray | None = None  # what came before its request may enter
        self._held = False  # it had its turn, and waits for its body
        self.conn = StrictConnection(h11.SERVER, MAX_HEADERS)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._lingered = 0

    def _start(self, name: str, seconds: float, action: Any) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, action)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]
        self._reception.arrived()
        self._start("head", self.header_timeout, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused_body():
            self._lingered += len(data)
            if self._lingered > self.linger_bytes:
                self.transport.abort()
                return
        if self._waiting is not None:
            self._waiting += data
            if len(self._waiting) > MAX_HEADERS:
                self.flow.pause_reading()
            if "body" in self._timers:
                self._body_late()
        elif self._begins() and not data.startswith(b"GET "):
            self._waiting, self._held = bytearray(data), False
            self._stop("head")  # it is we who let it wait
            self._unset_keepalive_if_required()
            self._reception.wait(self._enter)
        else:
            super().data_received(data)

    def _begins(self) -> bool:
        """Whether a request begins with what comes next."""
        return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def _enter(self) -> bool:
        """Hand on what has come; True where nothing is: it was refused, is held, or its client is gone."""
        data, self._waiting = self._waiting, None
        if data is None or self.transport.is_closing():
            return True
        self.flow.resume_reading()
        if self._turnstile is not None:
            answer = self._turnstile.refuse(bytes(data), self.client, self.server)
            if answer is not None:
                self._tell(*answer)
                return True
            if not self._held and self._turnstile.expects_more(bytes(data)):  # many send their body apart
                self._waiting, self._held = data, True
                self._start("body", self.body_wait, self._body_late)
                return True
        super().data_received(bytes(data))
        return False

    def _body_late(self) -> None:
        self._stop("body")
        self._reception.wait(self._enter)

    def _tell(self, headers: list[tuple[bytes, bytes]], body: bytes, close: bool) -> None:
        """Write a 503, after which the connection is as it was before the request."""
        head = [b"HTTP/1.1 503 Service Unavailable"]
        head += [name + b": " + value for name, value in (*self.server_state.default_headers, *headers)]
        head += [b"connection: close"] if close else []
        self.transport.write(b"\r\n".join((*head, b"", body)))
        if close:
            self.transport.close()
        else:  # as after an answer
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._start("head", self.header_timeout, self._head_late)  # a head has begun and is not complete
        elif self.conn.their_state is not h11.IDLE:
            self._stop("head")
        if not self._refused_body():
            self._stop("linger")
            self._lingered = 0

    def _refused_body(self) -> bool:
        """Whether the answer is out while the client is still sending the request."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and self.conn.their_state is h11.SEND_BODY

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # now, not with the next turn
        super().on_response_complete()
        if self._refused_body():
            self._start("linger", self.linger_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("write", self.write_stall, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("write")

    def _head_late(self) -> None:
        self._refuse(Refused(408, "request_timeout", "the request's headers arrived too slowly"))

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles the error of a request that h11 could not read."""
        if getattr(sys.exception(), "error_status_hint", 400) == 431:
            self._refuse(Refused(431, "headers_too_large", "the request's headers are too large"))
        else:  # also a transfer encoding that nobody knows: 501 is what clients repeat
            self._refuse(Refused(400, "malformed_request", "this is not a valid HTTP/1.1 request"))

    def _refuse(self, error: Refused) -> None:
        if self.transport.is_closing():
            return
        LOGGER.info("%s:%s refused: %d %s", *(self.client or ("-", 0)), error.status, error.code)
        answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answered and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error_body(error)
            headers = [
                (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
                (b"x-should-retry", b"false"), (b"connection", b"close"),
            ]  # fmt: skip
            reason = STATUS_PHRASES[error.status]
            head = h11.Response(status_code=error.status, headers=headers, reason=reason)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _should_upgrade(self) -> bool:
        return False  # no WebSocket here: the request is answered as plain HTTP
