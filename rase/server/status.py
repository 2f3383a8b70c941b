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
from rase import metrics
from rase.memory import available_memory
from rase.server.prometheus import CONTENT_TYPE, Answers, exposition
from rase.server.readiness import Readiness
from rase.server.replies import encode
from rase.server.runner import Runner

__all__ = ["Status"]

_NEVER_KEPT = {"cache-control": "no-store"}


class Status:
    """One object per application."""

    def __init__(self, runner: Runner, readiness: Readiness, answers: Answers) -> None:
        self._runner, self._readiness, self._answers = runner, readiness, answers
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
        text = await asyncio.to_thread(exposition, self._runner.cache, self._answers)
        return Response(text, headers={**_NEVER_KEPT, "content-type": CONTENT_TYPE})

    async def system(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self._summary))

    def _summary(self) -> dict[str, Any]:
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
            "models": [self._model(model) for model in self._runner.cache.loaded()],
        }  # fmt: skip

    @staticmethod
    def _model(model: Any) -> dict[str, Any]:
        known = metrics.of(model.id).snapshot()
        counters, times = known.counters, known.histograms
        proposed = counters["drafts_proposed"]
        return {
            "id": model.id, "weights": model.weights, "active": model.active,
            "waiting": int(known.gauges["queue_length"]), "running": int(known.gauges["requests_running"]),
            "finished": counters["requests_finished"], "failed": counters["requests_failed"],
            "tokens_prompt": counters["tokens_prompt"], "tokens_cached": counters["tokens_cached"],
            "tokens_generated": counters["tokens_generated"],
            "ttft_p50_s": times["ttft_seconds"].quantile(0.5),
            "itl_p50_s": times["itl_seconds"].quantile(0.5),
            "prefill_rate": round(times["prefill_rate"].mean, 1),
            "decode_rate": round(times["decode_rate"].mean, 1),
            "drafts_accepted": counters["drafts_accepted"] / proposed if proposed else None,
        }  # fmt: skip


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, headers=_NEVER_KEPT, media_type="application/json")
