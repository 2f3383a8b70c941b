"""An asyncio client that asks an OpenAI endpoint of this machine for streams, and notes when text comes.

It uses plain sockets: on two cores a client library would take more of the machine than the answers do.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.traffic import Ask

__all__ = ["Seen", "drive"]


@dataclass
class Seen:
    """What a client saw of one request; times are seconds after the moment at which it was due."""

    due: float  # seconds after the start of the run
    asked: int  # tokens of the answer
    status: int = 0
    times: list[float] = field(default_factory=list)  # of each piece of text
    done: bool = False  # the stream ended with [DONE]
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.done and self.status == 200 and len(self.times) > 0


async def drive(
    url: str, model: str, asks: Iterable[Ask], *, patience: float, options: dict[str, Any] | None = None,
    key: str | None = None,
) -> list[Seen]:  # fmt: skip
    """Send every request when it is due, whatever became of those before; wait ``patience`` seconds at most
    behind the last one. ``options`` are further fields of each body.
    """
    parts = urlsplit(url)
    assert parts.hostname in ("127.0.0.1", "localhost", "::1"), "loopback only"
    asks = list(asks)
    begin = time.perf_counter() + 0.1
    found = [Seen(ask.at, ask.tokens) for ask in asks]

    async def client(ask: Ask, seen: Seen) -> None:
        body = {
            "model": model, "messages": ask.messages, "max_tokens": ask.tokens, "temperature": 0,
            "stream": True, **(options or {}),
        }  # fmt: skip
        data = json.dumps(body).encode()
        head = (
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
            + "\r\n"
        ).encode()
        due = begin + ask.at
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(head + data)
                await _read(reader, seen, due)
            finally:
                writer.close()
        except OSError as error:
            seen.error = type(error).__name__

    tasks = [asyncio.create_task(client(*pair)) for pair in zip(asks, found, strict=True)]
    last = asks[-1].at if asks else 0.0
    _, late = await asyncio.wait(tasks, timeout=begin + last + patience - time.perf_counter())
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return found


async def _read(reader: asyncio.StreamReader, seen: Seen, due: float) -> None:
    seen.status = int((await reader.readline()).split()[1])
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            seen.done = True
            return
        event = json.loads(line[6:])
        if "error" in event:
            seen.error = str(event["error"])[:200]
            return
        if any(choice["delta"].get("content") for choice in event["choices"]):
            seen.times.append(time.perf_counter() - due)
