"""Server-sent events: a job's pieces as ``data:`` lines, with pings, errors and a proper end.

Every event is ``data: `` + one line of JSON + LF LF; no carriage return is ever sent. Comment lines keep
the connection open while a prompt is evaluated or a request waits. A stream ends with ``data: [DONE]``, or
with one ``{"error": …}`` event when something fails after the headers have left.

One task sends: whatever came since it sent last leaves in one write. So a thousand streams cost the event
loop about one write a step each, and fewer when it is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response

from rase.server.access import log_failure
from rase.server.body import ClientGone
from rase.server.errors import error_body
from rase.server.job import Job
from rase.server.replies import Reply

__all__ = ["JobStream", "event_stream"]

SEND_TIMEOUT_S = 30.0  # a client that takes nothing for so long is gone
_PING = b": ping\n\n"


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def event_stream(job: Job, reply: Reply, n: int) -> AsyncIterator[bytes]:
    """Yield the events of ``job``, several at a time; a ping where the job was reminded and has nothing."""
    opening = (reply.opening(index) for index in range(len(job.requests) * n))
    yield b"".join(_event(chunk) for chunk in opening if chunk is not None)
    async for pieces in job.pieces():
        chunks = [reply.delta(piece, number * n + piece.index) for number, piece in pieces]
        yield b"".join(_event(chunk) for chunk in chunks if chunk is not None) if pieces else _PING
    try:
        completions = job.done.result()
    except ClientGone:
        return
    except Exception as error:
        log_failure(error)
        yield _event(error_body(error))
        return
    ends = [
        reply.closing(choice, number * n + choice.index)
        for number, completion in enumerate(completions)
        for choice in completion.choices
    ]
    if reply.include_usage:
        ends.append(reply.totals(completions))
    yield b"".join(map(_event, [*ends, b"[DONE]"]))


class JobStream(Response):
    """The response that sends the events of one job, and a comment after ``ping_s`` seconds of silence."""

    media_type = "text/event-stream"

    def __init__(
        self, job: Job, reply: Reply, n: int, *, ping_s: float,
        over: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """``over`` is called when the stream has ended, however it did."""
        self._job, self._reply, self._n, self._ping_s, self._over = job, reply, n, ping_s, over
        self._silent = True  # since the clock was looked at
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._wind()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for data in event_stream(self._job, self._reply, self._n):
                if data:
                    self._silent = False
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # incomplete: the server closes the connection
        finally:
            self._clock.cancel()
            self._job.cancel()
            self._over()

    def _wind(self) -> None:
        self._clock = asyncio.get_running_loop().call_later(self._ping_s, self._look)

    def _look(self) -> None:
        if self._silent:
            self._job.remind()
        self._silent = True
        self._wind()
