"""Measures prefill and decode of a session beside the limits of the machine, all in one run."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rase.benchmark.cost import Cost, cost_of
from rase.errors import ContextLengthExceeded, InvalidSetting
from rase.memory import available_memory

if TYPE_CHECKING:
    from rase.backends.limits import Limits
    from rase.session import ModelSession

__all__ = ["Report", "Speed", "measure"]

Say = Callable[[str], object]
BUFFER = 2 << 30  # bytes that are read to measure the memory: no cache holds them


@dataclass(frozen=True)
class Speed:
    """One measured work: ``tokens`` behind ``context`` tokens, in ``seconds`` each time it was run."""

    what: str  # "prefill" or "decode"
    context: int
    tokens: int
    seconds: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens in a second, by the median time."""
        return self.tokens / statistics.median(self.seconds)


@dataclass(frozen=True)
class Report:
    """What ``measure`` found: the model's costs, the machine's limits (None where a backend knows none)."""

    model: str
    architecture: str
    numerics_class: str
    fingerprint: str
    cost: Cost
    limits: Limits | None
    load_s: float | None
    chunk_tokens: int  # most prompt tokens that share one reading of the weights
    speeds: tuple[Speed, ...]

    def rates(self, speed: Speed) -> dict[str, float]:
        """``gb_per_s`` of the file (decode) and ``gflop_per_s`` of the matrices, and shares of the limits.

        ``bandwidth_share`` is of the measured read bandwidth; ``peak_share`` of the unit that this numerics
        class multiplies prompts with, where the backend can measure that unit.
        """
        prefill = speed.what == "prefill"
        flop = self.cost.prompt_flop if prefill else self.cost.token_flop
        found = {"tokens_per_s": speed.tokens_per_s, "gflop_per_s": flop * speed.tokens_per_s / 1e9}
        if not prefill:
            found["gb_per_s"] = self.cost.token_bytes * speed.tokens_per_s / 1e9
        if self.limits is not None:
            peak = self.limits.peaks.get(self.limits.prompt_unit)
            if prefill and peak is not None:
                found["peak_share"] = found["gflop_per_s"] / peak
            elif not prefill:
                found["bandwidth_share"] = found["gb_per_s"] / self.limits.read_gb_per_s
        return found

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, for a file."""
        facts = asdict(self)
        facts["speeds"] = [{**asdict(speed), **self.rates(speed)} for speed in self.speeds]
        return facts


def measure(
    session: ModelSession,
    *,
    prompts: Sequence[int] = (512,),
    contexts: Sequence[int] = (128,),
    tokens: int = 64,
    rounds: int = 5,
    load_s: float | None = None,
    say: Say = lambda text: None,
) -> Report:
    """Time prompts of ``prompts`` tokens, and ``tokens`` generated tokens behind ``contexts`` tokens.

    Each is run once to warm up and ``rounds`` times for the report, with random token ids: what they say
    changes no speed. The limits are measured before and after, and the better value counts, so that company
    on the machine cannot make rase look good. ``say`` gets a line before each step.

    Raises ``InvalidSetting`` for counts below 1, ``ContextLengthExceeded`` before anything is measured.
    """
    for name, count in (("rounds", rounds), ("tokens", tokens), *(("prompt", n) for n in prompts),
                        *(("context", n) for n in contexts)):  # fmt: skip
        if count < 1:
            raise InvalidSetting(name, expected="at least 1", found=str(count))
    longest = max([*prompts, *(context + tokens for context in contexts)], default=0)
    if longest > session.context_length:
        raise ContextLengthExceeded(longest, session.context_length)
    program, scheduler = session.decoder.program, session.scheduler
    buffer = max(1 << 24, min(BUFFER, available_memory() // 4))
    say("measuring the machine")
    before = scheduler.call(lambda: program.limits(buffer))  # between the steps of whoever else is there
    speeds = []
    try:
        for count in prompts:
            say(f"prefill of {count} tokens, {rounds} rounds")
            speeds.append(Speed("prefill", 0, count, _prefill(session, count, rounds)))
        for context in contexts:
            say(f"decode behind {context} tokens, {rounds} rounds")
            speeds.append(Speed("decode", context, tokens, _decode(session, context, tokens, rounds)))
    finally:
        session.decoder.close()
    say("measuring the machine again")
    limits = before and before.better(scheduler.call(lambda: program.limits(buffer)))
    return Report(
        model=session.id, architecture=program.graph.architecture, numerics_class=session.numerics_class,
        fingerprint=session.fingerprint, cost=_cost(session), limits=limits, load_s=load_s,
        chunk_tokens=program.max_batch_tokens, speeds=tuple(speeds),
    )  # fmt: skip


def _ids(session: ModelSession, count: int) -> list[int]:
    generator, rows = random.Random(count), session.decoder.program.graph.vocab_size
    return [generator.randrange(rows) for _ in range(count)]


def _prefill(session: ModelSession, count: int, rounds: int) -> tuple[float, ...]:
    ids = _ids(session, count)
    return tuple(_seconds(lambda: session.decoder.prefill(ids)) for _ in range(rounds + 1))[1:]


def _decode(session: ModelSession, context: int, tokens: int, rounds: int) -> tuple[float, ...]:
    decoder, following = session.decoder, _ids(session, tokens)
    decoder.prefill(_ids(session, context))

    def run() -> None:
        decoder.truncate(context)
        for id in following:
            decoder.decode(id)

    return tuple(_seconds(run) for _ in range(rounds + 1))[1:]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _cost(session: ModelSession) -> Cost:
    from rase.models.files import open_model

    with open_model(session.manifest.weights) as file:
        return cost_of(session.decoder.program.graph, file.tensors)
