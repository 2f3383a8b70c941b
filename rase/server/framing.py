"""Refuse requests whose end is open to interpretation, which h11 reads in its own way.

Two readers that disagree about where a request ends can be made to see different requests (RFC 9112, 6.1 and
11.2). So a request names its length once: not both lengths, no chunks in HTTP/1.0, no other major version.
A body also comes in at most ``MAX_CHUNKS`` chunks: taking megabytes apart byte by byte stops the event loop.
"""

from __future__ import annotations

from typing import Any

import h11

__all__ = ["MAX_CHUNKS", "StrictConnection"]

MAX_CHUNKS = 16_384  # 512 bytes each for the largest body


class StrictConnection(h11.Connection):
    """h11's connection for a server, strict about framing: ``next_event`` raises ``RemoteProtocolError``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
            _check(event)
        elif isinstance(event, h11.Data) and event.chunk_start:
            self._chunks += 1
            if self._chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        return event


def _check(request: h11.Request) -> None:
    names = [name for name, _ in request.headers]
    chunked = b"transfer-encoding" in names
    if not request.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("unknown version of HTTP")
    if chunked and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("two lengths, or a length of the wrong version")
