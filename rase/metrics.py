"""Metrics: counters, gauges and histograms of each model, cheap enough to be always on.

    here = metrics.of("smollm2")
    here.count("tokens_generated")
    here.gauge("queue_length", 3)
    here.observe("ttft_seconds", 0.21)
    metrics.snapshot()["smollm2"].counters["tokens_generated"]

``METRICS`` is the table of all names; a name that is not in it is an error, so that a misspelt metric cannot
vanish. The names are those of Prometheus without prefix and suffix: an exporter writes ``rase_NAME``
(counters ``rase_NAME_total``) with the label ``model``, and ``Histogram.cumulative`` gives its buckets. Units
are in the names; what has none is a count.

An update leaves its number in a list, and whoever reads adds up: a step of a model makes several, and finds
the processor's caches full of weights. Do not update metrics from ``__del__`` or a weak reference's callback:
those run anywhere, while somebody adds up too.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, TypeVar

__all__ = ["METRICS", "Histogram", "Kind", "Metric", "Metrics", "Snapshot", "of", "snapshot"]

Kind = Literal["counter", "gauge", "histogram"]
T = TypeVar("T")


class Metric(NamedTuple):
    """One line of the table: what a name means. ``bounds`` are the upper bounds of a histogram's buckets."""

    kind: Kind
    meaning: str
    bounds: tuple[float, ...] = ()


_SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds of one token
_LONG = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
_RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
_SIZES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)

METRICS: dict[str, Metric] = {
    # Requests
    "requests_queued": Metric("counter", "requests that the scheduler accepted into its queue"),
    "requests_finished": Metric("counter", "requests that ended by a stop, an end token or their limit"),
    "requests_cancelled": Metric("counter", "requests that their caller gave up"),
    "requests_failed": Metric("counter", "requests that ended with an error or missed their deadline"),
    "requests_preempted": Metric("counter", "times that a request lost its pages and had to start again"),
    "queue_length": Metric("gauge", "requests that wait to be admitted"),
    "requests_running": Metric("gauge", "requests that are admitted and not finished"),
    "queue_seconds": Metric("histogram", "from the arrival of a request to its admission", _LONG),
    # Steps
    "batch_sequences": Metric("histogram", "sequences that share one step", _SIZES),
    "step_seconds": Metric("histogram", "one pass over the weights", _SHORT),
    "tokens_prompt": Metric("counter", "prompt tokens of the admitted requests"),
    "tokens_cached": Metric("counter", "those of them that the prefix cache held"),
    "tokens_prefilled": Metric("counter", "prompt tokens that were computed"),
    "tokens_generated": Metric("counter", "tokens that were chosen"),
    "prefill_rate": Metric("histogram", "prompt tokens a second, of steps with prompt tokens only", _RATES),
    "decode_rate": Metric("histogram", "tokens a second, of steps without prompt tokens", _RATES),
    "pages_evicted": Metric("counter", "pages of the prefix cache that were given up for other requests"),
    # What a user feels
    "ttft_seconds": Metric("histogram", "from the arrival of a request to its first token", _LONG),
    "itl_seconds": Metric("histogram", "from one token of an answer to the next", _SHORT),
    # Speculation
    "drafts_proposed": Metric("counter", "draft tokens that were verified"),
    "drafts_accepted": Metric("counter", "draft tokens that agreed"),
    # Models
    "loads": Metric("counter", "times that the model was loaded"),
    "loads_failed": Metric("counter", "times that loading it failed or was given up"),
    "unloads": Metric("counter", "times that the model was let go: on demand, idle, or for its memory"),
    "load_seconds": Metric("histogram", "loading it, hashes included", _LONG),
}  # fmt: skip


@dataclass
class Histogram:
    """Observed values: how many fell into each bucket, and their sum.

    ``counts[i]`` is the number of values ``<= bounds[i]`` and above the bound before; the last one, beyond
    all bounds, makes ``counts`` one longer than ``bounds``.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values, 0 without any."""
        return self.sum / count if (count := self.count) else 0.0

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, values up to it) of each bucket; the last bound is infinity."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds the value at share ``q``; 0 without values."""
        rank = q * self.count
        return next((bound for bound, below in self.cumulative() if below and below >= rank), 0.0)


@dataclass
class Snapshot:
    """The metrics of one model at one moment."""

    counters: dict[str, int]
    gauges: dict[str, float]
    histograms: dict[str, Histogram]


_LIST = 1000  # numbers that an update leaves before somebody adds them up


class Metrics:
    """The metrics of one model. Safe from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of everything but the lists, whose ends grow at any time
        self._gauges = {name: 0.0 for name, metric in METRICS.items() if metric.kind == "gauge"}
        self._counted: dict[str, list[int]] = {
            name: [] for name, metric in METRICS.items() if metric.kind == "counter"
        }
        self._observed: dict[str, list[float]] = {
            name: [] for name, metric in METRICS.items() if metric.kind == "histogram"
        }
        self._clear()

    def _clear(self) -> None:
        self._counters = dict.fromkeys(self._counted, 0)
        self._histograms = {name: Histogram(METRICS[name].bounds) for name in self._observed}

    def count(self, name: str, by: int = 1) -> None:
        """Add ``by`` to a counter. Raises ``KeyError`` for any other name."""
        counted = self._counted[name]
        counted.append(by)
        if len(counted) >= _LIST:
            self._add_up()

    def gauge(self, name: str, value: float) -> None:
        """State the present value of a gauge. Raises ``KeyError`` for any other name."""
        with self._lock:
            if name not in self._gauges:
                raise KeyError(name)
            self._gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        """Put ``value`` into a histogram. Raises ``KeyError`` for any other name."""
        observed = self._observed[name]
        observed.append(value)
        if len(observed) >= _LIST:
            self._add_up()

    def _add_up(self) -> None:
        with self._lock:
            self._add_lists()

    def _add_lists(self) -> None:
        """Move the numbers from the lists to where they belong; *locked*."""
        for name, counted in self._counted.items():
            self._counters[name] += sum(_taken(counted))
        for name, observed in self._observed.items():
            histogram = self._histograms[name]
            for value in _taken(observed):
                histogram.counts[bisect_left(histogram.bounds, value)] += 1
                histogram.sum += value

    def snapshot(self, reset: bool = False) -> Snapshot:
        """A copy of everything. With ``reset`` counters and histograms start again at zero, so that two calls
        bound a window in which nothing is lost or counted twice; gauges say how things are and stay."""
        with self._lock:
            self._add_lists()
            counters, histograms = self._counters, self._histograms
            if reset:
                self._clear()
            else:
                counters = dict(counters)
                histograms = {
                    name: Histogram(h.bounds, list(h.counts), h.sum) for name, h in histograms.items()
                }
            return Snapshot(counters, dict(self._gauges), histograms)


def _taken(numbers: list[T]) -> list[T]:
    """What was in a list, which others go on to append to."""
    found = numbers[:]
    del numbers[: len(found)]
    return found


_models: dict[str, Metrics] = {}
_lock = threading.Lock()


def of(model: str) -> Metrics:
    """The metrics of the model ``model`` in this process; the same object for every caller."""
    with _lock:
        return _models.setdefault(model, Metrics())


def snapshot(reset: bool = False) -> dict[str, Snapshot]:
    """``Metrics.snapshot`` of every model of this process."""
    with _lock:
        models = list(_models.items())
    return {model: each.snapshot(reset) for model, each in models}


def _start_again() -> None:
    """In a forked child: what the parent counted is the parent's, and its threads may hold the locks."""
    global _lock
    _lock = threading.Lock()
    for each in _models.values():
        each.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_start_again)
