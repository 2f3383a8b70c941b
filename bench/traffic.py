"""What clients ask of a server under load: when each request arrives, its prompt, and how long its answer is.

Everything follows from a seed. Arrivals are a Poisson process; they do not wait for answers, as people do not
wait for one another. Prompts are prose of a few hundred common words, each with other words, so that no cache
helps but where a kind shares a beginning on purpose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["KINDS", "Ask", "arrivals"]

_TEXT = """
    time year people way day man thing woman life child world school state family student group country
    problem hand part place case week company system program question work government number night point
    home water room mother area money story fact month lot right study book eye job word business issue side
    kind head house service friend father power hour game line end member law car city community name
    president team minute idea kid body information back parent face others level office door health person
    art war history party result change morning reason research girl guy moment air teacher force education
"""
WORDS = tuple(_TEXT.split())
SHARED_WORDS = 300  # of the beginning that all prompts of the kind "shared" have


@dataclass(frozen=True)
class Ask:
    """One request: seconds after the start, the messages, and the tokens of its answer."""

    at: float
    messages: list[dict[str, str]]
    tokens: int


def _prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _fixed(rng: random.Random) -> tuple[list[dict[str, str]], int]:
    """64 words in, 32 tokens out."""
    return [{"role": "user", "content": _prose(rng, 64)}], 32


def _mixed(rng: random.Random) -> tuple[list[dict[str, str]], int]:
    """8 to 256 words in, most of them short; 8 to 64 tokens out."""
    words = min(256, max(8, int(rng.lognormvariate(3.5, 0.9))))
    return [{"role": "user", "content": _prose(rng, words)}], rng.randint(8, 64)


def _shared(rng: random.Random) -> tuple[list[dict[str, str]], int]:
    """The same 300 words before 16 of its own; 32 tokens out."""
    beginning = _prose(random.Random(0), SHARED_WORDS)
    return [
        {"role": "system", "content": beginning}, {"role": "user", "content": _prose(rng, 16)},
    ], 32  # fmt: skip


KINDS: dict[str, Callable[[random.Random], tuple[list[dict[str, str]], int]]] = {
    "fixed": _fixed, "mixed": _mixed, "shared": _shared,
}  # fmt: skip


def arrivals(kind: str, rate: float, count: int, seed: int = 0) -> Iterator[Ask]:
    """``count`` requests of ``kind``, ``rate`` a second on average; an infinite rate is all at once."""
    rng = random.Random(f"{kind} {seed}")  # the same prompts at every rate
    clock = random.Random(f"clock {kind} {rate} {seed}")
    at = 0.0
    for _ in range(count):
        messages, tokens = KINDS[kind](rng)
        yield Ask(at, messages, tokens)
        at += clock.expovariate(rate) if rate != float("inf") else 0.0
