"""Runs engines in turn on the same file and keeps what each measured: the machinery of ``bench.peers``.

Every engine is a process that waits while another one measures. Where memory allows all stay loaded and
take turns metric by metric, so that a slow minute of the machine meets all of them; otherwise one at a time
is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

__all__ = ["METRICS", "Contest", "Contestant", "Metric", "Values"]

ROOT = Path(__file__).parents[1]
PAUSE = 0.3  # seconds before a measurement: the threads of the engine before stop spinning


@dataclass(frozen=True)
class Metric:
    """One thing to measure: what a worker is asked for, and what counts."""

    name: str
    request: dict[str, Any]
    unit: str = "tok/s"
    higher: bool = True  # whether more is better


METRICS = {
    metric.name: metric
    for metric in (
        Metric("prefill512", {"do": "prefill", "tokens": 512}),
        Metric("decode", {"do": "decode", "context": 128, "steps": 48}),
        *(Metric(f"batch{n}", {"do": "batch", "sequences": n, "steps": 24}) for n in (1, 2, 4, 8, 16)),
        Metric("prefill4096", {"do": "prefill", "tokens": 4096}),
        Metric("decode4096", {"do": "decode", "context": 4096, "steps": 24}),
        Metric("load", {"do": "load"}, "s", higher=False),
        Metric("memory", {"do": "memory"}, "MB", higher=False),
    )
}
OWN_PROCESS = ("load", "memory")  # measured in a process that has done nothing else; memory behind prefill512


@dataclass(frozen=True)
class Contestant:
    """An engine: ``label``, the module of its worker, the interpreter that runs it and its environment."""

    label: str
    module: str = "bench.rase_worker"
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)


class Process:
    """A worker that has loaded the model."""

    def __init__(self, contestant: Contestant, model: Path, threads: int, prio: int) -> None:
        command = [contestant.python, "-m", contestant.module, "--model", str(model)]
        command += ["--threads", str(threads), "--prio", str(prio)]
        environment = {**os.environ, "RASE_NUM_THREADS": str(threads), **contestant.environment}
        self.contestant = contestant
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        try:
            described = self.ask({"do": "describe"})
            self.settings: list[str] = described["settings"]
            self.can: list[str] = described["can"]
            self.loaded = self.ask({"do": "load"})
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request and its answer; ``RuntimeError`` when the worker fails or dies."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"ended with {self._process.wait()}"}
        if "error" in answer:
            raise RuntimeError(f"{self.contestant.label}: {request}: {answer['error']}")
        return dict(answer)

    def cpu_seconds(self) -> float:
        """What the worker has used so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


Values = dict[str, list[float]]  # by "label" or "label setting"


@dataclass
class Contest:
    """Contestants on one model file, and all values so far: ``values[metric][who]``."""

    model: Path
    contestants: Sequence[Contestant]
    threads: int = 2
    prio: int = 0
    lock: Path | None = None  # measurements of other programs that take this lock wait
    values: dict[str, Values] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # what each contestant said of itself
    notes: dict[str, list[str]] = field(default_factory=dict)  # the state of the machine that each saw
    company: list[float] = field(default_factory=list)  # cores that others used, by measurement
    logits: dict[tuple[str, str], Any] = field(default_factory=dict)

    def run(self, metrics: Iterable[str], rounds: int) -> None:
        """Measure each metric ``rounds`` times; calling again adds values."""
        names = list(metrics)
        warm = [METRICS[name] for name in METRICS if name in names and name not in OWN_PROCESS]
        with self.model.open("rb") as file:
            while file.read(1 << 24):  # into the page cache
                pass
        if warm:
            self._warm(warm, rounds)
        if any(name in OWN_PROCESS for name in names):
            for _ in range(rounds):
                for contestant in self.contestants:
                    self._cold(contestant, names)
        self._compare_logits()

    def _warm(self, metrics: list[Metric], rounds: int) -> None:
        together = _room() > 2.2 * self.model.stat().st_size * len(self.contestants)
        groups = [list(self.contestants)] if together else [[each] for each in self.contestants]
        if together:
            with self._processes(groups[0]) as processes:
                for _ in range(rounds):
                    self._round(processes, metrics)
            return
        for _ in range(rounds):
            for group in groups:
                with self._processes(group) as processes:
                    self._round(processes, metrics)

    def _round(self, processes: list[Process], metrics: list[Metric]) -> None:
        for metric in metrics:
            for process in processes:
                for setting in process.settings if metric.request["do"] in process.can else ():
                    answer = self._measure(process, {**metric.request, "setting": setting})
                    who = _who(process.contestant, setting)
                    self._keep(metric.name, who, answer["tokens"] / answer["seconds"])
                    if answer.get("machine"):
                        self.notes.setdefault(process.contestant.label, []).append(answer["machine"])
                    if "logits" in answer:
                        self.logits[metric.name, who] = np.asarray(answer["logits"])

    def _cold(self, contestant: Contestant, names: list[str]) -> None:
        with self._processes([contestant]) as (process,):
            if "load" in names:
                self._keep("load", contestant.label, process.loaded["seconds"])
            if "memory" in names:
                self._measure(process, {**METRICS["prefill512"].request, "setting": process.settings[0]})
                self._keep("memory", contestant.label, process.ask({"do": "memory"})["bytes"] / 1e6)

    def _keep(self, metric: str, who: str, value: float) -> None:
        self.values.setdefault(metric, {}).setdefault(who, []).append(value)
        print(f"  {metric:12} {who:16} {value:8.1f}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _processes(self, contestants: list[Contestant]) -> Iterator[list[Process]]:
        with contextlib.ExitStack() as stack:
            processes = []
            for contestant in contestants:
                with self._alone():
                    process = Process(contestant, self.model, self.threads, self.prio)
                stack.callback(process.close)
                processes.append(process)
                self.facts[contestant.label] = process.loaded
            yield processes

    def _measure(self, process: Process, request: dict[str, Any]) -> dict[str, Any]:
        with self._alone():
            time.sleep(PAUSE)
            start, machine, own = time.perf_counter(), _busy(), process.cpu_seconds()
            answer = process.ask(request)
            elapsed = time.perf_counter() - start
            self.company.append((_busy() - machine - process.cpu_seconds() + own) / elapsed)
        return answer

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        with self.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _compare_logits(self) -> None:
        """Engines that ran the same prompt must agree roughly; else one of them did other work."""
        for metric in {name for name, _ in self.logits}:
            rows = {who: row for (name, who), row in self.logits.items() if name == metric}
            first = next(iter(rows))
            for who, row in rows.items():
                likeness = float(np.corrcoef(rows[first], row)[0, 1])
                if not likeness > 0.95:
                    raise AssertionError(
                        f"{metric}: the logits of {first} and {who} correlate by {likeness:.3f}"
                    )

    def best(self, metric: str, labels: Iterable[str]) -> tuple[str, float]:
        """Who of the contestants ``labels``, in which setting, has the best median, and that median."""
        wanted = set(labels)
        medians = {
            who: statistics.median(values)
            for who, values in self.values[metric].items()
            if who.split(" ")[0] in wanted
        }
        choose = max if METRICS[metric].higher else min
        who = choose(medians, key=lambda name: medians[name])
        return who, medians[who]


def _who(contestant: Contestant, setting: str) -> str:
    return f"{contestant.label} {setting}".rstrip()


def _room() -> int:
    """Bytes that engines may take together."""
    return int(psutil.virtual_memory().available * 0.6)


def _busy() -> float:
    """CPU seconds of all processors together so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
