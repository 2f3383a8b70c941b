"""``Measure``: the observer that keeps the metrics of one model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rase.engine.observer import Observer

if TYPE_CHECKING:
    from rase.engine.request import Request
    from rase.metrics import Metrics

__all__ = ["Measure"]


class Measure(Observer):
    """Writes what the scheduler tells into ``metrics``; a table of the names is in ``rase.metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._waiting = self._running = 0

    def queued(self, request: Request) -> None:
        self._metrics.count("requests_queued")
        self._waiting += 1
        self._gauges()

    def admitted(self, request: Request, waited_s: float, cached_tokens: int) -> None:
        self._metrics.observe("queue_seconds", waited_s)
        self._metrics.count("tokens_prompt", len(request.prompt))
        self._metrics.count("tokens_cached", cached_tokens)
        self._waiting -= 1
        self._running += 1
        self._gauges()

    def step(self, decode_tokens: int, prompt_tokens: int, sequences: int, seconds: float) -> None:
        self._metrics.observe("batch_sequences", sequences)
        self._metrics.observe("step_seconds", seconds)
        if prompt_tokens:
            self._metrics.count("tokens_prefilled", prompt_tokens)
        if not decode_tokens and seconds > 0:
            self._metrics.observe("prefill_rate", prompt_tokens / seconds)
        elif not prompt_tokens and seconds > 0:
            self._metrics.observe("decode_rate", decode_tokens / seconds)

    def first_token(self, request: Request, seconds: float) -> None:
        self._metrics.count("tokens_generated")
        self._metrics.observe("ttft_seconds", seconds)

    def token(self, request: Request, seconds: float) -> None:
        self._metrics.count("tokens_generated")
        self._metrics.observe("itl_seconds", seconds)

    def drafts(self, request: Request, proposed: int, accepted: int) -> None:
        self._metrics.count("drafts_proposed", proposed)
        self._metrics.count("drafts_accepted", accepted)

    def preempted(self, request: Request) -> None:
        self._metrics.count("requests_preempted")

    def evicted(self, pages: int) -> None:
        self._metrics.count("pages_evicted", pages)

    def finished(self, request: Request, reason: str) -> None:
        self._metrics.count(_COUNTERS[reason])
        if request.admitted:
            self._running -= 1
        else:
            self._waiting -= 1
        self._gauges()

    def _gauges(self) -> None:
        self._metrics.gauge("queue_length", self._waiting)
        self._metrics.gauge("requests_running", self._running)


_COUNTERS = {
    "stop": "requests_finished", "length": "requests_finished", "cancelled": "requests_cancelled",
    "deadline": "requests_failed", "error": "requests_failed",
}  # fmt: skip
