"""Metrics: the table of names, exact sums under threads, windows that lose nothing."""

from __future__ import annotations

import os
import threading

import pytest

from rase import metrics
from rase.metrics import METRICS, Histogram, Metrics


def test_every_name_is_documented_and_fit_for_an_exporter() -> None:
    for name, metric in METRICS.items():
        assert name == name.lower() and name.replace("_", "").isalpha() and not name.endswith("_total")
        assert len(metric.meaning) > 15
        assert (metric.kind == "histogram") == bool(metric.bounds), name
        assert list(metric.bounds) == sorted(set(metric.bounds))


def test_a_name_that_is_not_in_the_table_or_of_another_kind_is_an_error() -> None:
    here = Metrics()
    for update in (here.count, lambda name: here.gauge(name, 1.0), lambda name: here.observe(name, 1.0)):
        with pytest.raises(KeyError):
            update("tokens_genrated")
    for update, name in (
        (here.count, "queue_length"),
        (lambda name: here.gauge(name, 1), "loads"),
        (lambda name: here.observe(name, 1), "loads"),
    ):
        with pytest.raises(KeyError):
            update(name)


def test_what_was_put_in_comes_out() -> None:
    here = Metrics()
    here.count("loads")
    here.count("tokens_generated", 41)
    here.gauge("queue_length", 7)
    here.gauge("queue_length", 3)
    for value in (0.001, 0.0011, 4.0, 99.0):
        here.observe("itl_seconds", value)
    now = here.snapshot()
    assert now.counters["loads"] == 1 and now.counters["tokens_generated"] == 41
    assert now.gauges == {"queue_length": 3.0, "requests_running": 0.0}
    histogram = now.histograms["itl_seconds"]
    assert histogram.count == 4 and histogram.sum == pytest.approx(103.0021)
    assert histogram.mean == pytest.approx(103.0021 / 4)
    found = dict(histogram.cumulative())
    assert found[0.001] == 1 and found[0.002] == 2 and found[2.0] == 2 and found[5.0] == 3
    assert found[float("inf")] == 4


def test_quantiles_are_the_bounds_of_their_buckets() -> None:
    empty = Histogram((1.0, 2.0))
    assert empty.quantile(0.5) == 0.0 and empty.mean == 0.0
    some = Histogram((1.0, 2.0), [3, 6, 1], 12.0)
    assert [some.quantile(q) for q in (0.0, 0.3, 0.31, 0.9, 0.91)] == [1.0, 1.0, 2.0, 2.0, float("inf")]


def test_a_snapshot_is_a_copy_and_a_reset_keeps_gauges() -> None:
    here = Metrics()
    here.count("loads")
    here.gauge("requests_running", 2)
    here.observe("ttft_seconds", 0.1)
    before = here.snapshot()
    here.count("loads")
    here.observe("ttft_seconds", 0.1)
    assert before.counters["loads"] == 1 and before.histograms["ttft_seconds"].count == 1
    window = here.snapshot(reset=True)
    assert window.counters["loads"] == 2 and window.histograms["ttft_seconds"].count == 2
    after = here.snapshot()
    assert after.counters["loads"] == 0 and after.histograms["ttft_seconds"].count == 0
    assert after.gauges["requests_running"] == 2
    here.count("loads")
    assert window.counters["loads"] == 2, "a window that was taken does not change any more"


def test_threads_and_windows_lose_nothing() -> None:
    here, rounds, workers = Metrics(), 2000, 8
    windows: list[metrics.Snapshot] = []

    def work() -> None:
        for _ in range(rounds):
            here.count("tokens_generated", 3)
            here.observe("batch_sequences", 4)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        windows.append(here.snapshot(reset=True))
    windows.append(here.snapshot(reset=True))
    assert sum(window.counters["tokens_generated"] for window in windows) == 3 * rounds * workers
    assert sum(window.histograms["batch_sequences"].count for window in windows) == rounds * workers


def test_what_nobody_reads_takes_no_more_memory() -> None:
    here = Metrics()
    for _ in range(2500):
        here.count("loads")
        here.observe("itl_seconds", 0.01)
    assert len(here._counted["loads"]) < 1000 and len(here._observed["itl_seconds"]) < 1000
    now = here.snapshot()
    assert now.counters["loads"] == now.histograms["itl_seconds"].count == 2500
    assert now.histograms["itl_seconds"].sum == pytest.approx(25.0)


def test_models_have_metrics_of_their_own() -> None:
    one, other = metrics.of("test-metrics-one"), metrics.of("test-metrics-other")
    assert one is metrics.of("test-metrics-one") and one is not other
    one.count("loads")
    now = metrics.snapshot()
    assert now["test-metrics-one"].counters["loads"] == 1
    assert now["test-metrics-other"].counters["loads"] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_counts_for_itself_even_if_a_lock_was_held() -> None:
    here = metrics.of("test-metrics-fork")
    here.count("loads", 5)
    with here._lock:  # as if another thread were inside an update at the moment of the fork
        child = os.fork()
        if child == 0:
            here.count("loads")
            os._exit(here.snapshot().counters["loads"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert here.snapshot().counters["loads"] == 5
