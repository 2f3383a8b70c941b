"""The endpoints that tell of the server itself.

GET  /health, /healthz    the process answers
GET  /ready               requests may come: 200, else 503 with the reasons
GET  /version
GET  /metrics             Prometheus text (``rase.server.prometheus``)
GET  /metrics/system      a summary in JSON
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import rase
from rase.memory import available_memory
from rase.server.engines import Engines
from rase.server.prometheus import CONTENT_TYPE, Answers, exposition, of_process
from rase.server.readiness import Readiness
from rase.server.replies import encode

__all__ = ["Status"]

_NEVER_KEPT = {"cache-control": "no-store"}


class Status:
    """One object per application."""

    def __init__(self, engines: Engines, readiness: Readiness, answers: Answers) -> None:
        self._engines, self._readiness, self._answers = engines, readiness, answers
        self._started = time.time()

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/healthz", self.health),
            Route("/ready", self.ready),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/metrics/system", self.system),
        ]

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        reasons = await self._readiness.reasons()
        if reasons:
            return _json({"status": "unavailable", "reasons": reasons}, 503)
        return _json({"status": "ready"})

    async def version(self, request: Request) -> Response:
        return _json({"version": rase.__version__})

    async def metrics(self, request: Request) -> Response:
        models = await self._engines.families()
        text = await asyncio.to_thread(
            lambda: exposition([*of_process(), *self._answers.families(), *models])
        )
        return Response(text, headers={**_NEVER_KEPT, "content-type": CONTENT_TYPE})

    async def system(self, request: Request) -> Response:
        models = await self._engines.summaries()
        return _json(await asyncio.to_thread(self._summary, models))

    def _summary(self, models: list[dict[str, Any]]) -> dict[str, Any]:
        """What a console shows: times in seconds, sizes in bytes, rates in tokens a second."""
        import psutil

        process = psutil.Process()
        times = process.cpu_times()
        answers = self._answers.snapshot()
        errors = sum(count for (_, _, status), count in answers.items() if status >= 500)
        return {
            "version": rase.__version__, "uptime_s": round(time.time() - self._started, 1),
            "http": {"requests": sum(answers.values()), "errors": errors},
            "memory": {"resident": process.memory_info().rss, "available": available_memory()},
            "processor": {"seconds": round(sum(times[:2]), 2), "threads": process.num_threads()},
            "models": models,
        }  # fmt: skip


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, headers=_NEVER_KEPT, media_type="application/json")
