"""What the models in one process's cache are doing: what is wrong with them, and their figures for people."""

from __future__ import annotations

import asyncio
from typing import Any

from rase import metrics

__all__ = ["faults", "summaries"]

PATIENCE_S = 0.6  # for a driver's answer between two steps, which takes a millisecond


async def faults(cache: Any, patience_s: float = PATIENCE_S) -> list[str]:
    """What keeps loaded models from answering; takes ``patience_s`` seconds at most."""
    schedulers = [
        scheduler
        for session in cache.sessions()
        if (scheduler := getattr(session, "scheduler", None)) is not None
    ]
    answers = await asyncio.gather(
        *(asyncio.to_thread(scheduler.answers, patience_s) for scheduler in schedulers)
    )
    return [] if all(answers) else ["the scheduler of a model does not answer"]


def summaries(cache: Any) -> list[dict[str, Any]]:
    """The figures of each loaded model: times in seconds, sizes in bytes, rates in tokens a second."""
    return [_summary(model) for model in cache.loaded()]


def _summary(model: Any) -> dict[str, Any]:
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
