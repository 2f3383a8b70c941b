"""Who may change nothing: one set of requests, computed alone and then under every circumstance.

``Bench`` loads one model file and runs ``Asked`` requests through the completion pipeline; what it finds is
the text, the token ids and a digest of the logits behind every token of every choice. ``alone`` is what is
right: one request at a time, nothing cached. ``CIRCUMSTANCES`` are the ways to run the same requests that
must not be seen in it; ``suite`` runs them all.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rase.backends.base import Program
from rase.completion import Running, TextRequest, prepare, start
from rase.engine.config import GenerationConfig
from rase.engine.decoder import ProgramDecoder
from rase.engine.kv_cache import PagePool
from rase.engine.observer import Observer
from rase.engine.scheduler import Limits, Scheduler
from rase.engine.sequence import Sequence as Choice
from rase.engine.speculation import PromptLookup
from rase.session import ModelSession

__all__ = ["CIRCUMSTANCES", "Answer", "Asked", "Bench", "differences", "make_requests", "recording", "suite"]

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
        self, path: Path, *, threads: int = 2, batch_tokens: int = 512,
        plant: Callable[[Program, int], Program] = lambda program, threads: program,
    ) -> None:  # fmt: skip
        with _environment(RASE_NUM_THREADS=threads, RASE_MAX_BATCH_TOKENS=batch_tokens):
            self.session = ModelSession.load_file(path)
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

    def start(self, asked: Asked) -> Running:
        """Hand one request over."""
        request = TextRequest(prompt=list(asked.prompt), config=asked.config, n=asked.n, stop=asked.stop)
        return start(self.session, prepare(self.session, request))

    def finish(self, running: Running) -> Answer:
        """Wait for its answer."""
        if not running.request.wait(WAIT_S):
            raise TimeoutError("the request does not end")
        done = running.result()
        seen = running.request.seen  # type: ignore[attr-defined]
        return [(choice.text, tuple(choice.token_ids), tuple(seen[choice.index])) for choice in done.choices]

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


class _Guesses:
    """Drafts that are the right answer, now and then with a wrong token."""

    def __init__(self, asked: Sequence[Asked], answers: Sequence[Answer], seed: int) -> None:
        pairs = zip(asked, answers, strict=True)
        self._known = {one.prompt: [ids for _, ids, _ in answer] for one, answer in pairs}
        self._rng = random.Random(seed)

    def propose(self, ids: Sequence[int], limit: int) -> list[int]:
        limit = self._rng.randint(0, limit)
        for prompt, answers in self._known.items():
            if tuple(ids[: len(prompt)]) == prompt:
                said = tuple(ids[len(prompt) :])
                for answer in answers:
                    if answer[: len(said)] == said:
                        drafts = list(answer[len(said) : len(said) + limit])
                        if drafts and self._rng.random() < 0.4:
                            drafts[self._rng.randrange(len(drafts))] = 1
                        return drafts
        return []

    def feedback(self, proposed: int, accepted: int) -> None: ...


class _Preemptions(Observer):
    def __init__(self) -> None:
        self.count = 0

    def preempted(self, request: Any) -> None:
        self.count += 1


# Circumstances: each gets the requests, what is right, and a seed, and returns what it finds.


def neighbours(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """In groups of 2 to 16, in any order, into an empty cache."""
    bench.fresh()
    return _in_groups(bench, asked, rng)


def warm(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """A second time, when the cache knows everything."""
    bench.fresh()
    bench.together(asked)
    cached, answers = 0, []
    for one in asked:
        running = bench.start(one)
        answers.append(bench.finish(running))
        cached += running.request.cached_tokens
    assert cached > 0, "nothing was found in the cache"
    return answers


def small_steps(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """Prompts in pieces of some 32 tokens, as many of them at a time as there is room for."""
    bench.fresh(chunked_prefill_size=32)
    return _in_groups(bench, asked, rng)


def odd_steps(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """Prompts in pieces that end nowhere in particular."""
    bench.fresh(chunked_prefill_size=rng.choice((37, 101, 255)))
    return _in_groups(bench, asked, rng)


def lookup(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """With prompt lookup, as eager as it can be."""
    bench.fresh(drafts=lambda: PromptLookup(row_cost=0.0))
    return _in_groups(bench, asked, rng, most=4)


def drafts(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """With drafts that are mostly right."""
    guesses = _Guesses(asked, right, rng.randrange(2**32))
    bench.fresh(drafts=lambda: guesses)
    accepted, answers = 0, []
    for one in asked:
        running = bench.start(one)
        answers.append(bench.finish(running))
        accepted += running.request.accepted
    assert accepted > 0, "no draft was accepted"
    return answers


def cancels(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """Beside and after twins that are cancelled while they wait, prefill or decode."""
    bench.fresh(max_batch_seqs=6)
    answers = []
    for one in asked:
        twins = [bench.start(rng.choice(asked)) for _ in range(3)]
        running = bench.start(one)
        for twin in twins:
            time.sleep(rng.choice((0, 0, 0.001, 0.003)))
            twin.cancel()
        answers.append(bench.finish(running))
    return answers


def scarce(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """With pages for little more than the longest request: the cache is evicted, sequences are preempted."""
    program = bench.session.scheduler.program
    longest = max(len(one.prompt) + one.config.max_tokens for one in asked)
    budget, page = 0, sum(program.page_bytes)
    while PagePool(program, budget).most_tokens < longest:
        budget += page
    seen = bench.fresh(budget=budget + 4 * page).observer = _Preemptions()
    answers = _in_groups(bench, asked, rng, most=len(asked))
    assert seen.count or len(asked) < 16, "nothing was preempted"
    return answers


def held(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """Beside decoders of the same program that keep their places."""
    scheduler = bench.fresh()
    decoders = [ProgramDecoder(scheduler) for _ in range(3)]
    answers = []
    for number, one in enumerate(asked):
        running = bench.start(one)
        decoder = decoders[number % 3]
        if decoder.length:
            decoder.decode(rng.choice(one.prompt))
        else:
            decoder.prefill(one.prompt[:40])
        answers.append(bench.finish(running))
    return answers


CIRCUMSTANCES: dict[str, Callable[[Bench, Asks, Answers, random.Random], Answers]] = {
    function.__name__: function
    for function in (neighbours, warm, small_steps, odd_steps, lookup, drafts, cancels, scarce, held)
}


def _in_groups(bench: Bench, asked: Sequence[Asked], rng: random.Random, most: int = 16) -> list[Answer]:
    order = rng.sample(range(len(asked)), len(asked))
    answers: list[Answer] = [[] for _ in asked]
    while order:
        group = [order.pop() for _ in range(min(len(order), rng.randint(min(2, most), most)))]
        for number, answer in zip(group, bench.together([asked[number] for number in group]), strict=True):
            answers[number] = answer
    return answers


@contextmanager
def recording() -> Iterator[None]:
    """Note a digest of the logits that each token was chosen from, on its request as ``seen[choice]``."""
    real = Choice.take

    def take(self: Choice, row: Any, observer: Any) -> bool:
        seen = self.request.__dict__.setdefault("seen", {number: [] for number in range(self.request.n)})
        seen[self.choice].append(hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest())
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


def suite(
    path: Path, count: int, seed: int,
    plant: Callable[[Program, int], Program] = lambda program, threads: program,
    threads: tuple[int, ...] = (1, 3, 4),
) -> list[str]:  # fmt: skip
    """Run ``count`` requests under every circumstance and say what differs from each alone."""
    wrong = []
    with recording():
        bench = Bench(path, plant=plant)
        asked = make_requests(count, bench.session.scheduler.vocab_size, seed)
        asked = bench.with_stops(asked, bench.alone(asked), seed)
        right = bench.alone(asked)
        for name, circumstance in CIRCUMSTANCES.items():
            found = circumstance(bench, asked, right, random.Random(seed))
            wrong += [f"{name}: {what}" for what in differences(asked, right, found)]
        others = {f"{count} threads": {"threads": count} for count in threads}
        for name, options in {**others, "steps of 2048 tokens": {"batch_tokens": 2048}}.items():
            other = Bench(path, plant=plant, **options)
            wrong += [f"{name}: {what}" for what in differences(asked, right, other.together(asked))]
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
