"""The outermost layer: who may talk to us, header limits, request ids, the log line, no unhandled exception.

Requests that arrive on a loopback address must name a loopback host: a foreign name is a web page that
rebound its own name to this machine. A request with an ``Origin`` must come from this server's own pages or
from a listed origin: any other is a web page driving the API. No CORS header is sent unless origins are
listed. Where the server has API keys, only ``OPEN`` paths answer without one.

Every answer names its request in ``X-Request-Id``: by the client's own name for it, if that is a sane one.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from rase.server.access import facts, log_failure, log_request
from rase.server.errors import Refused, error_response
from rase.server.keys import Keys

__all__ = ["OPEN", "Guard", "is_loopback"]

OPEN = frozenset({"/health", "/healthz", "/ready"})  # what a probe asks, and what tells nothing to a stranger
MAX_HEADERS = 64 << 10  # bytes of all names and values
# Headers that decide something here: of two values, another reader may take the other one.
_SINGLE = (
    b"host", b"origin", b"content-type", b"content-encoding", b"authorization", b"x-api-key", b"api-key",
)  # fmt: skip
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?", re.IGNORECASE)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CORS = {
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "*, Authorization",
    "access-control-max-age": "600",
}


def _split_host(value: str) -> tuple[str, int | None] | None:
    """Name (lower case, no final dot, no brackets) and port of a Host header; None when it is malformed."""
    match = _HOST.fullmatch(value.strip())
    if match is None:
        return None
    name = match[1].lower().removesuffix(".").strip("[]")
    return name, int(match[2]) if match[2] else None


def is_loopback(name: str) -> bool:
    """Whether a host name or an address means this machine only."""
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _request_id(scope: Any) -> str:
    """What the client calls its request, else a name of ours."""
    given = next((v for k, v in scope["headers"] if k == b"x-request-id"), b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: Any, *, hosts: Collection[str] = (), origins: Collection[str] = (),
        keys: Keys | None = None, listeners: Sequence[Callable[[Any, int, float], object]] = (),
    ) -> None:  # fmt: skip
        """``listeners`` are called with (scope, status, seconds) of each request that has ended."""
        self.app, self.keys, self.listeners = app, keys or Keys(), (log_request, *listeners)
        self.hosts = {host.lower().removesuffix(".") for host in hosts}
        self.origins = {origin.lower().rstrip("/") for origin in origins}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        facts(scope)["id"] = _request_id(scope)

        async def watched_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.stamp(scope, message)
            await send(message)

        try:
            await self._answer(scope, receive, watched_send)
        except Exception as error:
            log_failure(error)
            facts(scope).setdefault("error", getattr(error, "code", type(error).__name__))
            if status == 0:
                await error_response(error)(scope, receive, watched_send)
            # else: the response is cut, which the server closes the connection for
        finally:
            self.tell(scope, status, time.perf_counter() - started)

    def check(self, scope: Any) -> dict[str, str]:
        """Name a request that comes another way, and return its headers; raises ``Refused`` as it must."""
        facts(scope)["id"] = _request_id(scope)
        headers = self._checked_headers(scope)
        self._check_key(scope, headers)
        return headers

    def stamp(self, scope: Any, message: Any) -> None:
        """Add to the head of an answer what every answer has."""
        MutableHeaders(scope=message)["x-request-id"] = facts(scope)["id"]
        self._add_cors(scope, message)

    def tell(self, scope: Any, status: int, seconds: float) -> None:
        """Count and log a request that has ended."""
        for listener in self.listeners:
            listener(scope, status, seconds)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = self._checked_headers(scope)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204, headers=_CORS)(scope, receive, send)
            return
        self._check_key(scope, headers)
        await self.app(scope, receive, send)

    def _check_key(self, scope: Any, headers: dict[str, str]) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self.keys and path not in OPEN and not self.keys.admit(headers):
            raise Refused(
                401, "invalid_api_key", "this server asks for an API key",
                expected="Authorization: Bearer KEY", hint="Ask whoever runs it for a key.",
            )  # fmt: skip

    def _checked_headers(self, scope: Any) -> dict[str, str]:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._check(scope, headers)
        return headers

    def _check(self, scope: Any, headers: dict[str, str]) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            raise Refused(431, "headers_too_large", "the request's headers are too large")
        names = [name for name, _ in scope["headers"]]
        for single in _SINGLE:
            if names.count(single) > 1:
                raise Refused(400, "duplicate_header", f"the header {single.decode()} is given twice")
        host = headers.get("host")
        split = _split_host(host) if host is not None else None
        on_loopback = is_loopback((scope.get("server") or ("", 0))[0])
        if host is not None and (on_loopback or self.hosts):
            name = split[0] if split is not None else ""
            if not (name in self.hosts or (on_loopback and is_loopback(name))):
                raise Refused(
                    403, "host_not_allowed", "this server does not answer to that Host",
                    hint="Use 127.0.0.1 or localhost, or start the server with this name as an allowed host.",
                )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and not self._own_origin(origin, split) and origin.lower() not in self.origins:
            raise Refused(
                403, "origin_not_allowed", "web pages of other origins may not use this server",
                hint="Start the server with this origin as an allowed origin.",
            )  # fmt: skip

    @staticmethod
    def _own_origin(origin: str, host: tuple[str, int | None] | None) -> bool:
        """Whether a page of this very server sent it: same port, and same name (loopback is one name)."""
        try:
            parts = urlsplit(origin)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            return False
        if host is None or parts.scheme not in ("http", "https") or parts.hostname is None:
            return False
        name = parts.hostname.removesuffix(".")
        same_name = name == host[0] or (is_loopback(name) and is_loopback(host[0]))
        return same_name and port == (host[1] or (443 if parts.scheme == "https" else 80))

    def _add_cors(self, scope: Any, message: Any) -> None:
        origin = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"origin"), None)
        if origin is not None and origin.lower() in self.origins:
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["vary"] = "Origin"
