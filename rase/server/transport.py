"""``GatheringTransport``: what is written to a connection in one turn of the event loop leaves in one piece.

A response is a head, a body and an end; a system call for each costs the loop more than making them, above
all while other threads wait for the interpreter lock that every call gives away.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["GatheringTransport"]

FULL = 1 << 16  # bytes that are handed on at once, so that flow control sees them


class GatheringTransport:
    """Stands before an asyncio transport; whatever is not about writing goes straight to it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Send ``data`` with whatever else this turn writes."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= FULL:
            self.flush()

    def flush(self) -> None:
        """Send what was written so far."""
        if self._parts:
            data = b"".join(self._parts)
            self._parts, self._size = [], 0
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written so far and close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._parts, self._size = [], 0
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
