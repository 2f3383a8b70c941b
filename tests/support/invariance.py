"""Who may change nothing: one set of requests, computed alone and then under every circumstance.

``CIRCUMSTANCES`` are the ways to run the requests of a ``Bench`` that must not be seen in what comes of them;
``suite`` runs them all.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rase.backends.base import Program
from rase.engine.decoder import ProgramDecoder
from rase.engine.draft_model import DraftModel
from rase.engine.kv_cache import PagePool
from rase.engine.observer import Observer
from rase.engine.request import Request
from rase.engine.speculation import PromptLookup
from tests.support.asking import (
    WAIT_S,
    Answer,
    Answers,
    Asked,
    Asks,
    Bench,
    differences,
    make_requests,
    recording,
)

__all__ = ["CIRCUMSTANCES", "suite"]


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
    answers, cached = bench.in_turn(asked, lambda request: request.cached_tokens)
    assert cached > 0, "nothing was found in the cache"
    return answers


def restarted(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """In a program that knows nothing but what another one left on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        bench.fresh()
        disk = bench.keep_prefixes(folder)
        bench.together(asked)
        assert disk.flush(WAIT_S) and disk.stored > 0, "nothing was written"
        other = bench.again()
        disk = other.keep_prefixes(folder)
        answers = _in_groups(other, asked, rng)
        assert disk.restored > 0, "nothing was found on the disk"
    return answers


def draft_model(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """With the same model as its own draft model, whose guesses are right where the best token is taken."""
    other = bench.again()
    bench.fresh(drafts=lambda: DraftModel(other.session.scheduler, row_cost=0.0, wait=True))
    return _in_groups(bench, asked, rng, most=3)


def slow_readers(bench: Bench, asked: Asks, right: Answers, rng: random.Random) -> Answers:
    """Beside requests whose readers take a token now and then, and with such a reader."""
    bench.fresh(max_batch_seqs=6)
    running = [bench.start(one) for one in asked]
    for one in running:
        one.request.ahead = _lagging(one.request, random.Random(rng.randrange(2**32)))
    return [bench.finish(one) for one in running]


def _lagging(request: Request, rng: random.Random) -> Callable[[], bool]:
    """Behind in three steps of ten, and ready again at once."""

    def ahead() -> bool:
        behind = rng.random() < 0.3
        if behind:
            request.wake()
        return behind

    return ahead


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
    answers, accepted = bench.in_turn(asked, lambda request: request.accepted)
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
    for function in (
        neighbours,
        warm,
        restarted,
        small_steps,
        odd_steps,
        lookup,
        drafts,
        draft_model,
        slow_readers,
        cancels,
        scarce,
        held,
    )
}


def _in_groups(bench: Bench, asked: Sequence[Asked], rng: random.Random, most: int = 16) -> list[Answer]:
    order = rng.sample(range(len(asked)), len(asked))
    answers: list[Answer] = [[] for _ in asked]
    while order:
        group = [order.pop() for _ in range(min(len(order), rng.randint(min(2, most), most)))]
        for number, answer in zip(group, bench.together([asked[number] for number in group]), strict=True):
            answers[number] = answer
    return answers


def suite(
    path: Path, count: int, seed: int,
    plant: Callable[[Program, int], Program] = lambda program, threads: program,
    threads: tuple[int, ...] = (1, 3, 4), kv: str = "f16",
) -> list[str]:  # fmt: skip
    """Run ``count`` requests under every circumstance and say what differs from each alone."""
    wrong = []
    with recording():
        bench = Bench(path, kv=kv, plant=plant)
        asked = make_requests(count, bench.session.scheduler.vocab_size, seed)
        asked = bench.with_stops(asked, bench.alone(asked), seed)
        right = bench.alone(asked)
        for name, circumstance in CIRCUMSTANCES.items():
            found = circumstance(bench, asked, right, random.Random(seed))
            wrong += [f"{name}: {what}" for what in differences(asked, right, found)]
        others = {f"{count} threads": {"threads": count} for count in threads}
        for name, options in {**others, "steps of 2048 tokens": {"batch_tokens": 2048}}.items():
            other = Bench(path, kv=kv, plant=plant, **options)
            wrong += [f"{name}: {what}" for what in differences(asked, right, other.together(asked))]
    return wrong
