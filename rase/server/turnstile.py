"""``Turnstile``: tell those whom a full queue refuses so at once, without the machinery of an answer.

A refused chat costs the event loop about a millisecond of HTTP, routing and tasks. When hundreds meet a full
queue together the last one waits for all of these, and so does every stream. This reads just enough of a
request to know that it would be refused with 503; whatever is unusual about one goes the long way, which has
the same checks and says the same.
"""

from __future__ import annotations

import re
import time
from typing import Any

from rase.errors import InvalidRequest
from rase.server.access import facts
from rase.server.body import check_content_type
from rase.server.engines import Engines
from rase.server.errors import error_response
from rase.server.guard import Guard
from rase.server.openai import model_of

__all__ = ["Turnstile"]

MAX_SIZE = 64 << 10  # bytes of a request that is looked at: reading a long one is work for its turn
_LINE = re.compile(rb"POST ((?:/v1)?/(?:chat/)?completions) HTTP/1\.1")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,5})[ \t]*\r\n", re.IGNORECASE)
_STRANGE = frozenset({b"transfer-encoding", b"expect", b"upgrade"})  # what changes how a request is read


class Turnstile:
    """``engines.full(model)`` says how a request for ``model`` is refused now, ``guard`` who may ask."""

    def __init__(self, guard: Guard, engines: Engines) -> None:
        self._guard, self._engines = guard, engines

    def expects_more(self, data: bytes) -> bool:
        """Whether some queue is full, and the body of the request ``data`` is still to come."""
        if not self._engines.crowded:
            return False
        head, end, body = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        return bool(end) and length is not None and len(body) < int(length[1])

    def refuse(
        self, data: bytes, client: Any, server: Any
    ) -> tuple[list[tuple[bytes, bytes]], bytes, bool] | None:
        """Headers and body of the 503 for the whole request ``data``, which is then counted and logged, and
        whether the client wants the connection closed behind it.

        None: it has a place, or somebody else must judge it.
        """
        head, end, body = data.partition(b"\r\n\r\n")
        if not end or len(data) > MAX_SIZE:
            return None
        line, *fields = head.split(b"\r\n")
        target, matches = _LINE.fullmatch(line), [_FIELD.fullmatch(field) for field in fields]
        if target is None or None in matches:
            return None
        headers = [(match[1].lower(), match[2]) for match in matches if match is not None]
        names = [name for name, _ in headers]
        lengths = [value for name, value in headers if name == b"content-length"]
        if names.count(b"host") != 1 or not _STRANGE.isdisjoint(names) or lengths != [b"%d" % len(body)]:
            return None
        model = model_of(body)
        error = None if model is None else self._engines.full(model)
        if error is None:
            return None
        started, path = time.perf_counter(), target[1].decode()
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": target[1],
            "query_string": b"", "root_path": "", "headers": headers, "client": client, "server": server,
        }  # fmt: skip
        try:
            check_content_type(self._guard.check(scope))
        except InvalidRequest:
            return None
        facts(scope).update(model=model, error=error.code)
        answer = error_response(error)
        message = {"headers": list(answer.raw_headers)}
        self._guard.stamp(scope, message)
        self._guard.tell(scope, answer.status_code, time.perf_counter() - started)
        close = any(b"close" in value.lower() for name, value in headers if name == b"connection")
        return message["headers"], bytes(answer.body), close
