"""One engine in a process of its own that measures on demand: JSON lines in, JSON lines out.

    {"do": "decode", "context": 128, "steps": 32}   ->   {"tokens": 32, "seconds": 0.5}

The process of a peer runs on another interpreter, which has NumPy and that engine but not rase: this module
and those of the peers import nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

__all__ = ["Worker", "ids", "serve", "timed"]

Answer = dict[str, Any]


def ids(count: int, seed: int = 0) -> list[int]:
    """Token ids that every engine gets, in the range that all vocabularies have."""
    generator = random.Random(seed)
    return [generator.randrange(1000, 40000) for _ in range(count)]


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of ``work``."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Worker(ABC):
    """What an engine measures; ``settings`` are ways to run that share the loaded model."""

    settings: tuple[str, ...] = ("",)
    can: tuple[str, ...] = ("prefill", "decode", "batch")  # what it measures, besides load and memory

    @abstractmethod
    def load(self) -> Answer:
        """Load the model, ready to run: ``seconds``, and ``version`` of the engine."""

    @abstractmethod
    def prefill(self, setting: str, tokens: int) -> Answer:
        """A prompt in an empty cache, logits of the last token; ``logits`` are the first 256 of them.

        ``machine`` may be a word for the state that the machine was in.
        """

    @abstractmethod
    def decode(self, setting: str, context: int, steps: int) -> Answer:
        """``steps`` tokens one by one behind ``context`` tokens, logits read each time."""

    @abstractmethod
    def batch(self, setting: str, sequences: int, steps: int) -> Answer:
        """``steps`` steps of that many sequences at once, each behind 32 tokens; ``tokens`` counts all."""

    def memory(self) -> Answer:
        """Peak resident ``bytes`` of the process so far."""
        return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def describe(self) -> Answer:
        """The settings and what can be measured."""
        return {"settings": list(self.settings), "can": list(self.can)}


def arguments() -> argparse.ArgumentParser:
    """The options of every worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prio", type=int, default=0, help="real-time priority, where this user may have it")
    return parser


def serve(make: Callable[[argparse.Namespace], Worker]) -> None:
    """Answer requests until stdin ends. What the engine prints goes to stderr."""
    options = arguments().parse_args()
    if options.prio:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(options.prio))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = make(options)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), file=answers, flush=True)
