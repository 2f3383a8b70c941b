"""Read a request body within its limits, and check that it is JSON text that may be parsed.

Limits: 8 MiB (413), 30 s without a byte or slower than 1 KiB/s after 30 s (408), JSON nested deeper than 64,
with more than 512 fields or 100,000 lists and objects (400). The content type must be JSON in UTF-8 (415): a
web page cannot send that without asking first. A byte order mark in front is skipped.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Callable
from typing import Any

from rase.errors import InvalidRequest
from rase.server.errors import Refused

__all__ = ["BOM", "MAX_BODY", "MAX_DEPTH", "ClientGone", "check_content_type", "checked_json", "read_body"]

MAX_BODY = 8 << 20  # bytes
MAX_DEPTH = 64
MAX_FIELDS = 512  # of the request itself: five times those that are known
BODY_IDLE_S = 30.0
MIN_RATE = 1024  # bytes per second that a body must keep once BODY_IDLE_S is over
MAX_CONTAINERS = 100_000  # lists and objects: each becomes a Python object, whatever the request does with it
BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 18  # bytes looked at in one go: short enough to leave the GIL to others


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""

    code = "client_closed"


def check_content_type(headers: Any) -> None:
    """Refuse (415) anything but JSON in UTF-8, uncompressed; no content type at all is refused too."""
    given = headers.get("content-type", "")
    kind, *parameters = [part.strip().lower() for part in given.split(";")]
    pairs = [parameter.partition("=") for parameter in parameters]
    charsets = [value.strip("\"' ") for name, _, value in pairs if name.strip() == "charset"]
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not is_json or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise Refused(
            415, "unsupported_media_type", "the body must be JSON in UTF-8",
            expected="Content-Type: application/json", found=repr(given[:80]) if given else "no Content-Type",
        )  # fmt: skip
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refused(415, "unsupported_media_type", "a compressed body is not accepted")


async def read_body(
    headers: Any, receive: Callable[[], Any], limit: int = MAX_BODY, idle_s: float = BODY_IDLE_S
) -> bytes:
    """Return the whole body; raises ``Refused`` (413, 408) or ``ClientGone``."""
    too_large = Refused(413, "request_too_large", "the body is too large", expected=f"at most {limit} bytes")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size, start = 0, time.monotonic()
    while True:
        patience = min(idle_s, start + idle_s + size / MIN_RATE - time.monotonic())
        try:
            async with asyncio.timeout(max(patience, 0.001)):
                message = await receive()
        except TimeoutError:
            raise Refused(408, "request_timeout", "the request body arrived too slowly", close=True) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large
        if not message.get("more_body", False):
            return b"".join(parts)


def checked_json(body: bytes) -> bytes:
    """Return ``body`` without a byte order mark; refuse bad UTF-8 and hostile shapes, before any parsing."""
    body = body.removeprefix(BOM)
    if not body.strip():
        raise InvalidRequest("the body is empty", expected="a JSON object")
    _check_utf8(body)
    _check_shape(body)
    return body


def _check_utf8(body: bytes) -> None:
    """Refuse bytes that are not UTF-8, in pieces: the text of a large body is not built."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), _CHUNK):
            decoder.decode(body[start : start + _CHUNK])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not valid UTF-8") from None


def _check_shape(body: bytes) -> None:
    """Refuse deep nesting, thousands of fields, masses of tiny values; exact, linear, in vector code."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH and body.count(b":") <= MAX_FIELDS:
        return
    import numpy as np

    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of quotes opens or closes a string
    depth, in_string, fields, containers = 0, 0, 0, 0
    for start in range(0, len(plain), _CHUNK):
        chunk = np.frombuffer(plain, np.uint8, min(_CHUNK, len(plain) - start), start)
        inside = (np.cumsum(chunk == 0x22, dtype=np.uint8) + in_string) & 1
        in_string = int(inside[-1])
        step = ((chunk == 0x5B) | (chunk == 0x7B)).astype(np.int8) - ((chunk == 0x5D) | (chunk == 0x7D))
        step[inside == 1] = 0
        containers += int(np.count_nonzero(step == 1))
        if containers > MAX_CONTAINERS:
            raise InvalidRequest(
                "the body has too many parts", expected=f"at most {MAX_CONTAINERS} lists and objects"
            )
        levels = np.cumsum(step, dtype=np.int32) + depth
        if int(levels.max()) > MAX_DEPTH:
            raise InvalidRequest("the body is nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        depth = int(levels[-1])
        fields += int(np.count_nonzero((chunk == 0x3A) & (levels == 1) & (inside == 0)))
        if fields > MAX_FIELDS:
            raise InvalidRequest("the request has too many fields", expected=f"at most {MAX_FIELDS}")
