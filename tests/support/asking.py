"""Requests to one model file, and what came of them: texts, ids, and the bits behind every token.

``Bench`` loads a file and runs ``Asked`` requests through the completion pipeline; ``alone`` is right: one
request at a time, nothing cached.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rase.backends.base import Program
from rase.completion import Running, TextRequest, prepare, start
from rase.engine.config import GenerationConfig
from rase.engine.disk_tier import DiskTier
from rase.engine.kv_cache import PagePool
from rase.engine.page_files import PageFiles
from rase.engine.request import Request
from rase.engine.scheduler import Limits, Scheduler
from rase.engine.sequence import Sequence as Choice
from rase.session import ModelSession

__all__ = [
    "WAIT_S", "Answer", "Answers", "Asked", "Asks", "Bench", "differences", "make_requests", "recording",
]  # fmt: skip

Answer = list[tuple[str, tuple[int, ...], tuple[str, ...]]]  # text, ids and digests of each choice
WAIT_S = 300


@dataclass(frozen=True)
class Asked:
    """One request."""

    prompt: tuple[int, ...]
    config: GenerationConfig
    n: int = 1
    stop: tuple[str, ...] = ()


def make_requests(count: int, vocab: int, seed: int, longest: int = 700) -> list[Asked]:
    """Requests of mixed lengths, seeds, temperatures, penalties and choices; many share a beginning."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(vocab) for _ in range(length)] for length in (75, 290, longest - 60)]
    asked = []
    for number in range(count):
        beginning = rng.choice([[], [], beginnings[0], beginnings[0], beginnings[1], beginnings[2]])
        beginning = beginning[: len(beginning) - rng.choice((0, 0, 1, 20))]
        own = [rng.randrange(vocab) for _ in range(rng.choice((1, 2, 7, 20, 31, 32, 33, 60)))]
        config = GenerationConfig(
            max_tokens=rng.choice((1, 3, 8, 20, 40)), seed=rng.randrange(2**40),
            temperature=rng.choice((0.0, 0.0, 0.7, 1.3)), top_k=rng.choice((None, 5, 40)),
            top_p=rng.choice((1.0, 0.9)), min_p=rng.choice((0.0, 0.05)),
            repetition_penalty=rng.choice((1.0, 1.0, 1.2)), frequency_penalty=rng.choice((0.0, 0.0, 0.4)),
        )  # fmt: skip
        # The last one is a chat's next turn: it goes on from the request before it.
        if number % 5 == 4 and asked:
            beginning = [*asked[-1].prompt, *own[:5]]
        asked.append(Asked((*beginning, *own), config, rng.choice((1, 1, 1, 2, 3))))
    return asked


Asks = Sequence[Asked]
Answers = list[Answer]


class Bench:
    """One model file. Every circumstance gets a scheduler of its own, and so an empty prefix cache."""

    def __init__(
        self, path: Path, *, threads: int = 2, batch_tokens: int = 512, kv: str = "f16",
        plant: Callable[[Program, int], Program] = lambda program, threads: program,
    ) -> None:  # fmt: skip
        self.again = lambda: Bench(path, threads=threads, batch_tokens=batch_tokens, kv=kv, plant=plant)
        with _environment(RASE_NUM_THREADS=threads, RASE_MAX_BATCH_TOKENS=batch_tokens):
            self.session = ModelSession.load_file(path, kv=kv)
        self._first = self.session.scheduler  # the program lives as long as it does
        self._program = plant(self._first.program, threads)
        self.fresh()

    def fresh(
        self, *, budget: int | None = None, drafts: Callable[[], Any] | None = None, **limits: Any
    ) -> Scheduler:
        """Give the session an empty scheduler."""
        old, self.session.scheduler = self.session.scheduler, None  # type: ignore[assignment]
        if old is not self._first:
            old.close()
        program = self._program
        self.session.scheduler = Scheduler(
            program, PagePool(program, budget or self._first.pool.budget),
            vocab_size=self._first.vocab_size, limits=Limits(**limits),
        )  # fmt: skip
        self.session.drafts = drafts
        return self.session.scheduler

    def keep_prefixes(self, folder: str) -> DiskTier:
        """Let the present scheduler keep its prefixes on the disk."""
        disk = self.session.scheduler.keep_prefixes(PageFiles(folder, 1 << 30), ["a bench"])
        assert disk is not None
        return disk

    def start(self, asked: Asked, **options: Any) -> Running:
        """Hand one request over; ``options`` are those of ``rase.running.start``."""
        request = TextRequest(prompt=list(asked.prompt), config=asked.config, n=asked.n, stop=asked.stop)
        return start(self.session, prepare(self.session, request), **options)

    def finish(self, running: Running) -> Answer:
        """Wait for its answer."""
        if not running.request.wait(WAIT_S):
            raise TimeoutError("the request does not end")
        done = running.result()
        seen = running.request.seen  # type: ignore[attr-defined]
        return [(choice.text, tuple(choice.token_ids), tuple(seen[choice.index])) for choice in done.choices]

    def in_turn(self, asked: Sequence[Asked], count: Callable[[Request], int]) -> tuple[list[Answer], int]:
        """One after the other; and the sum of what ``count`` says of each request at its end."""
        answers, total = [], 0
        for one in asked:
            running = self.start(one)
            answers.append(self.finish(running))
            total += count(running.request)
        return answers, total

    def together(self, asked: Sequence[Asked]) -> list[Answer]:
        """Hand all over at once."""
        return [self.finish(running) for running in [self.start(one) for one in asked]]

    def alone(self, asked: Sequence[Asked]) -> list[Answer]:
        """What is right: one after the other, from nothing."""
        self.fresh(enable_prefix_caching=False)
        return [self.finish(self.start(one)) for one in asked]

    def with_stops(self, asked: Sequence[Asked], answers: Sequence[Answer], seed: int) -> list[Asked]:
        """The same requests, a third of them with a stop string that their own answer contains."""
        rng = random.Random(seed)
        changed = []
        for one, answer in zip(asked, answers, strict=True):
            text = answer[0][0]
            at = rng.randrange(max(1, len(text) - 2))
            stop = text[at : at + rng.choice((1, 2, 3))]
            changed.append(replace(one, stop=(stop,)) if stop and rng.random() < 0.34 else one)
        return changed


@contextmanager
def recording() -> Iterator[None]:
    """Note a digest of the logits that each token was chosen from, on its request as ``seen[choice]``."""
    real = Choice.take

    def take(self: Choice, row: Any, observer: Any) -> bool:
        seen = self.request.__dict__.setdefault("seen", {number: [] for number in range(self.request.n)})
        seen[self.choice].append(hashlib.blake2b(row.logits.tobytes(), digest_size=8).hexdigest())
        return real(self, row, observer)

    Choice.take = take  # type: ignore[method-assign]
    try:
        yield
    finally:
        Choice.take = real  # type: ignore[method-assign]


def differences(asked: Sequence[Asked], right: Sequence[Answer], found: Sequence[Answer]) -> list[str]:
    """What differs, in words; empty when nothing does."""
    wrong = []
    for number, (one, expected, got) in enumerate(zip(asked, right, found, strict=True)):
        for choice, ((text, ids, rows), (text2, ids2, rows2)) in enumerate(zip(expected, got, strict=True)):
            if (text, ids, rows) == (text2, ids2, rows2):
                continue
            pairs = enumerate(zip(rows, rows2, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(rows), len(rows2)))
            what = f"logits of token {at}" if rows != rows2 else "ids" if ids != ids2 else "text"
            wrong.append(f"request {number} (prompt of {len(one.prompt)}), choice {choice}: other {what}")
    return wrong


@contextmanager
def _environment(**values: object) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
