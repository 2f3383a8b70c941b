"""The metrics of this process, and ``exposition``: as Prometheus text.

Each name of ``rase.metrics.METRICS`` is ``rase_NAME`` with the label ``model``, a counter
``rase_NAME_total``. Of this module are

    rase_build_info                     1, with the label version
    rase_http_requests_total            answers, by method, route (chat, models, …) and status
    rase_model_weights_bytes            of the files of a loaded model
    rase_kv_cache_pages                 pages of the KV cache that may be used, by model and cache group
    rase_kv_cache_pages_in_use          those that hold something, prefixes included
    rase_memory_available_bytes         what the process may still take
    process_*                           processor time, memory, descriptors (prometheus-client)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

import rase
from rase import metrics
from rase.memory import available_memory

__all__ = ["CONTENT_TYPE", "Answers", "exposition", "labelled", "of_models", "of_process"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})


class Answers:
    """Counts what a server answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def count(self, scope: Any, status: int, seconds: float) -> None:
        """A request has ended. Methods and endpoints that we do not know are ``other``: labels stay few."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("endpoint"), "__name__", "other")
        with self._lock:
            self._counts[method, route, status] += 1

    def snapshot(self) -> dict[tuple[str, str, int], int]:
        with self._lock:
            return dict(self._counts)

    def families(self) -> list[Family]:
        http = CounterMetricFamily(
            "rase_http_requests", "Answers of the HTTP server.", labels=["method", "route", "status"]
        )
        for (method, route, status), count in sorted(self.snapshot().items()):
            http.add_metric([method, route, str(status)], count)
        return [http]


def exposition(families: Iterable[Family]) -> bytes:
    """``families`` as text; those of one name, such as two replicas have, become one."""
    merged: dict[str, Family] = {}
    for family in families:
        if family.name not in merged:
            merged[family.name] = Family(family.name, family.documentation, family.type, family.unit)
        merged[family.name].samples += family.samples
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready([*merged.values()]))
    return generate_latest(registry)


class _Ready(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def labelled(families: Iterable[Family], **labels: str) -> list[Family]:
    """``families`` with further labels on every sample."""
    found = []
    for family in families:
        copy = Family(family.name, family.documentation, family.type, family.unit)
        copy.samples = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
        found.append(copy)
    return found


def of_process() -> list[Family]:
    """What runs, and what it takes."""
    build = GaugeMetricFamily("rase_build_info", "Always 1; what runs.", labels=["version"])
    build.add_metric([rase.__version__], 1)
    memory = GaugeMetricFamily(
        "rase_memory_available_bytes", "What the process may still take.", available_memory()
    )
    return [build, memory, *ProcessCollector(registry=None).collect()]


def of_models(cache: Any) -> list[Family]:
    """All metrics of the models in ``cache``, and of those that were in it."""
    return [*_loaded(cache), *_models()]


def _loaded(cache: Any) -> Iterable[Family]:
    weights = GaugeMetricFamily(
        "rase_model_weights_bytes", "Bytes of the files of a loaded model.", labels=["model"]
    )
    for model in cache.loaded():
        weights.add_metric([model.id], model.weights)
    yield weights
    labels = ["model", "group"]
    pages = GaugeMetricFamily("rase_kv_cache_pages", "Pages that may be used.", labels=labels)
    used = GaugeMetricFamily("rase_kv_cache_pages_in_use", "Pages that hold something.", labels=labels)
    for session in cache.sessions():
        scheduler = getattr(session, "scheduler", None)
        if scheduler is not None:
            pool = scheduler.pool
            for group, (most, now) in enumerate(zip(pool.capacity, pool.in_use, strict=True)):
                pages.add_metric([session.id, str(group)], most)
                used.add_metric([session.id, str(group)], now)
    yield pages
    yield used


def _models() -> Iterable[Family]:
    """The families of ``rase.metrics``, a sample for each model."""
    models = sorted(metrics.snapshot().items())
    for name, metric in metrics.METRICS.items():
        title, text = f"rase_{name}", metric.meaning[:1].upper() + metric.meaning[1:] + "."
        if metric.kind == "counter":
            counter = CounterMetricFamily(title, text, labels=["model"])
            for model, snapshot in models:
                counter.add_metric([model], snapshot.counters[name])
            yield counter
        elif metric.kind == "gauge":
            gauge = GaugeMetricFamily(title, text, labels=["model"])
            for model, snapshot in models:
                gauge.add_metric([model], snapshot.gauges[name])
            yield gauge
        else:
            histogram = HistogramMetricFamily(title, text, labels=["model"])
            for model, snapshot in models:
                values = snapshot.histograms[name]
                buckets = [
                    ("+Inf" if bound == float("inf") else repr(float(bound)), count)
                    for bound, count in values.cumulative()
                ]
                histogram.add_metric([model], buckets, values.sum)
            yield histogram
