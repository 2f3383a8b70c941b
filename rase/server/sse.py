"""Server-sent events: a job's pieces as ``data:`` lines, with pings, errors and a proper end.

Every event is ``data: `` + one line of JSON + LF LF; no carriage return is ever sent. Comment lines keep
the connection open while a prompt is evaluated or a request waits. A stream ends with ``data: [DONE]``, or
with one ``{"error": …}`` event when something fails after the headers have left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent

from rase.server.access import log_failure
from rase.server.body import ClientGone
from rase.server.errors import error_body
from rase.server.replies import Reply
from rase.server.runner import Job

__all__ = ["JobStream", "event_stream"]

SEND_TIMEOUT_S = 30.0  # a client that takes nothing for so long is gone

# The library would log every chunk, that is the answers, when a host switches debug messages on.
logging.getLogger("sse_starlette.sse").setLevel(logging.INFO)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def event_stream(job: Job, reply: Reply, n: int) -> AsyncIterator[bytes]:
    """Yield the events of ``job``; leaving the iterator early cancels it."""
    try:
        for index in range(len(job.requests) * n):
            if (chunk := reply.opening(index)) is not None:
                yield _event(chunk)
        async for number, piece in job.pieces():
            if (chunk := reply.delta(piece, number * n + piece.index)) is not None:
                yield _event(chunk)
        try:
            completions = await job.done
        except ClientGone:
            return
        except Exception as error:
            log_failure(error)
            yield _event(error_body(error))
            return
        for number, completion in enumerate(completions):
            for choice in completion.choices:
                yield _event(reply.closing(choice, number * n + choice.index))
        if reply.include_usage:
            yield _event(reply.totals(completions))
        yield _event(b"[DONE]")
    finally:
        job.cancel()


class JobStream(EventSourceResponse):
    """The response that sends the events of one job. ``drain`` is called when a hosting server shuts down."""

    def __init__(
        self, job: Job, reply: Reply, n: int, *, ping_s: float, drain: Callable[[], object], drain_s: float
    ) -> None:
        self._job, self._drain, self._stopping = job, drain, anyio.Event()
        super().__init__(
            event_stream(job, reply, n), sep="\n", ping=ping_s, send_timeout=SEND_TIMEOUT_S,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            client_close_handler_callable=self._left, shutdown_event=self._stopping,
            shutdown_grace_period=drain_s + 1.0, headers={"content-type": "text/event-stream; charset=utf-8"},
        )  # fmt: skip

    async def _left(self, message: Any) -> None:
        self._job.cancel()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        watcher = asyncio.ensure_future(self._stopping.wait())
        watcher.add_done_callback(lambda w: None if w.cancelled() else self._drain())
        try:
            await super().__call__(scope, receive, send)
        finally:
            watcher.cancel()
            self._job.cancel()
