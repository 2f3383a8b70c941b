"""Contests between engines: turns, the best setting of a peer, faults that name their engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from bench import contest as contests
from bench.contest import Contest, Contestant
from bench.peers import table
from bench.rase_worker import RaseWorker
from bench.synth import synthesize
from bench.vocabulary import generated
from bench.worker import ids
from rase.session import ModelSession
from tests.bench.test_synth import SMALL


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(contests, "PAUSE", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 1000)
    return path


def fake(label: str, speed: int, **environment: str) -> Contestant:
    return Contestant(label, "tests.bench.fake_worker", environment={"FAKE_SPEED": str(speed), **environment})


def test_the_best_setting_of_the_peers_counts(model):
    contest = Contest(model, [fake("ours", 40), fake("a", 10), fake("b", 20)])
    contest.run(["decode", "prefill512", "load"], rounds=2)
    assert contest.values["decode"]["a"] == [30.0, 30.0] and contest.values["decode"]["a fa"] == [10.0, 10.0]
    assert contest.best("decode", ["a", "b"]) == ("b", 60.0)
    assert contest.best("load", ["a", "b"]) == ("b", pytest.approx(0.05))
    text = table(contest, ["ours"], ["a", "b"])
    assert "ours is 2.00 times as good as b, the best peer setting" in text
    assert text.count("ours is 2.00 times") == 3, text


def test_with_little_memory_one_engine_is_loaded_at_a_time(model, monkeypatch):
    alive: list[int] = []
    close = contests.Process.close
    start = contests.Process.__init__
    monkeypatch.setattr(contests.Process, "close", lambda self: (alive.remove(1), close(self)))
    monkeypatch.setattr(
        contests.Process, "__init__", lambda self, *args: (start(self, *args), alive.append(1))[0]
    )
    monkeypatch.setattr(contests, "_room", lambda: 2100 * 2)
    most = []
    monkeypatch.setattr(Contest, "_round", lambda self, processes, metrics: most.append(len(alive)))
    Contest(model, [fake("a", 1), fake("b", 1)]).run(["decode"], rounds=2)
    assert most == [1, 1, 1, 1] and not alive
    monkeypatch.setattr(contests, "_room", lambda: 10000)
    Contest(model, [fake("a", 1), fake("b", 1)]).run(["decode"], rounds=2)
    assert most[4:] == [2, 2]


def test_a_fault_names_the_engine(model):
    with pytest.raises(RuntimeError, match=r"broken: .*prefill.*ValueError: no memory for a context"):
        Contest(model, [fake("broken", 1, FAKE_FAULT="1")]).run(["prefill512"], rounds=1)


def test_an_engine_that_does_not_start_is_an_error(model):
    absent = Contestant("absent", "bench.no_such_worker")
    with pytest.raises(RuntimeError, match=r"absent: .* ended with 1"):
        Contest(model, [absent]).run(["decode"], rounds=1)


def test_engines_that_compute_something_else_are_an_error(model):
    contest = Contest(model, [fake("ours", 1), fake("other", 1, FAKE_LOGITS="1")])
    with pytest.raises(AssertionError, match=r"ours and other correlate by -1\.000"):
        contest.run(["prefill512"], rounds=1)


def test_the_worker_of_rase_computes_what_a_session_does(tmp_path: Path):
    path = synthesize(SMALL, tmp_path / "small.gguf", generated(SMALL.vocab_size))
    worker = RaseWorker(argparse.Namespace(model=str(path)))
    worker.load()
    decoder = ModelSession.load_file(path).decoder
    prompt = [id % SMALL.vocab_size for id in ids(600)]
    worker_ids = pytest.MonkeyPatch()
    with worker_ids.context() as patch:
        patch.setattr("bench.rase_worker.ids", lambda count, seed=0: [i % 1500 for i in ids(count, seed)])
        logits = worker.prefill("", 600)["logits"]
        assert worker.decode("", 600, 4)["tokens"] == 4
        assert worker.batch("", 3, 4)["tokens"] == 12
        # what decode left in the cache is the continuation of the prompt
        worker.decode("", 40, 3)
        row = worker._step([5], [43], worker._pages(1, 64)[:1])[0]
    assert np.array_equal(np.float32(logits), decoder.prefill(prompt)[:256])
    decoder.prefill(prompt[:40])
    for id in ids(3, 1):
        decoder.decode(id % 1500)
    assert np.array_equal(row, decoder.decode(5))
