"""What is measured of a loaded model, and how: shared by the benches and by the proofs of speed.

Every speed is set beside a limit of the machine that was measured just before and just after it (the better
of the two counts), with the threads that the engine used: other work on the machine then lowers both.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rase.backends.base import PROMPT, Batch
from rase.backends.cpu import select_variant
from rase.engine import sampler as samplers
from rase.engine.config import GenerationConfig
from rase.engine.request import Request
from rase.gguf.reader import GgufFile
from rase.graph import ops
from rase.session import ModelSession

__all__ = [
    "Measured",
    "Timer",
    "bytes_per_token",
    "decode",
    "in_chunks",
    "median_of",
    "overhead",
    "prefill",
    "report",
]

PROMPT_TOKENS, ANSWER_TOKENS = 512, 48
PROSE = Path(__file__).parents[1] / "tests" / "data" / "prose.txt"

Measured = dict[str, float]
Calls = list[tuple[float, float]]
"""When each of some calls began and ended."""
Timer = Callable[[Callable[[], object]], float]
"""Runs a piece of work several times and returns the median of its seconds."""


def median_of(runs: int) -> Timer:
    """A timer without pytest-benchmark."""

    def timer(work: Callable[[], object]) -> float:
        work()
        return statistics.median(_seconds(work) for _ in range(runs))

    return timer


def bytes_per_token(path: Path, graph: ops.Graph) -> int:
    """Bytes of the file that one generated token reads: every weight, but of an untied embedding one row."""
    multiplied = {op.weight.name for op in graph.ops if isinstance(op, ops.Linear | ops.Logits)}
    rows_only = {op.weight.name for op in graph.ops if isinstance(op, ops.Embed)} - multiplied
    with GgufFile.open(path) as file:
        return sum(file.tensors[name].nbytes for name in graph.weights if name not in rows_only)


def prompt_ids(session: ModelSession, count: int) -> list[int]:
    """The first ``count`` ids of the prose, repeated."""
    ids = session.tokenizer.encode(PROSE.read_text("utf-8"), True)
    return (ids * (count // len(ids) + 1))[:count]


def decode(session: ModelSession, path: Path, timer: Timer) -> Measured:
    """Greedy decode after a short prompt: ``tokens_per_s``, ``gb_per_s``, ``bandwidth_gb_per_s``, ``share``.

    The ids must be the same in every run, and in the portable class the last logits those of a prefill of
    all ids.
    """
    decoder, prompt = session.decoder, prompt_ids(session, 24)
    answers: list[list[int]] = []
    last: list[Any] = []

    def run() -> None:
        logits, ids = start, []
        decoder.truncate(len(prompt))
        for _ in range(ANSWER_TOKENS):
            ids.append(int(logits.argmax()))
            logits = decoder.decode(ids[-1])
        answers.append(ids)
        last[:] = [logits]

    start = decoder.prefill(prompt)
    limits = [_bandwidth(decoder.program)]
    seconds = timer(run) / ANSWER_TOKENS
    limits.append(_bandwidth(decoder.program))
    if any(ids != answers[0] for ids in answers):
        raise AssertionError("greedy decode gave different ids")
    if "int8" in session.numerics_class and not np.array_equal(decoder.prefill(prompt + answers[0]), last[0]):
        raise AssertionError("decode and prefill gave different logits")
    speed = bytes_per_token(path, decoder.program.graph) / seconds / 1e9
    limit = max(limits)
    return {
        "tokens_per_s": 1 / seconds, "gb_per_s": speed, "bandwidth_gb_per_s": limit, "share": speed / limit
    }  # fmt: skip


def prefill(session: ModelSession, timer: Timer) -> Measured:
    """A prompt of ``PROMPT_TOKENS``: ``tokens_per_s``, ``gflop_per_s``, ``peak_gflop_per_s``, ``share``.

    The operations are those of the linears; attention and everything else is in the time alone. The logits
    must be finite, and those of the same prompt in two chunks.
    """
    decoder, ids = session.decoder, prompt_ids(session, PROMPT_TOKENS)
    outputs: list[Any] = []
    limits = [_peak(decoder.program)]
    seconds = timer(lambda: outputs.append(decoder.prefill(ids)))
    limits.append(_peak(decoder.program))
    decoder.close()  # its pages are free
    outputs.append(session.scheduler.call(lambda: in_chunks(decoder.program, ids, 300))[: len(outputs[0])])
    if not np.isfinite(outputs[0]).all() or any(not np.array_equal(row, outputs[0]) for row in outputs):
        raise AssertionError("prefill gave different or infinite logits")
    linears = [op.weight.shape for op in decoder.program.graph.ops if isinstance(op, ops.Linear)]
    speed = 2 * PROMPT_TOKENS * sum(rows * cols for rows, cols in linears) / seconds / 1e9
    limit = max(limits)
    return {
        "tokens_per_s": PROMPT_TOKENS / seconds, "gflop_per_s": speed, "peak_gflop_per_s": limit,
        "share": speed / limit,
    }  # fmt: skip


def in_chunks(program: Any, ids: list[int], size: int) -> Any:
    """The last logits of a prompt that is computed ``size`` tokens at a time, in the first pages."""
    pages = np.arange(-(-len(ids) // program.page_tokens), dtype=np.int32)
    program.reserve_pages(len(pages))
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        wanted = [len(piece) - 1] if start + size >= len(ids) else []
        rows = program.run(Batch.of(piece, start, pages, PROMPT, wanted, len(program.page_bytes)))
    return rows[0]


def overhead(session: ModelSession, runs: int = 3) -> Measured:
    """Microseconds of Python for each token of a generation, from one pass over the weights to the next.

    ``engine_us`` is the scheduler, the batch and the sampler; ``pipeline_us`` is that and all text work. Both
    are without the compiled work, which is the walker's and the sampler's pass over the logits
    (``sampler_us``), each where it happened. ``decoder_us`` is a ``ProgramDecoder`` with a sampler: two
    changes of thread more. The median token counts. Python runs cold: the weights went through all caches.
    """
    from rase.completion import TextRequest, prepare, start

    decoder, scheduler = session.decoder, session.scheduler
    config = GenerationConfig(max_tokens=ANSWER_TOKENS, temperature=0.7, seed=1)
    prompt = prompt_ids(session, 24)
    walker, picker = _Stopwatch(scheduler.program._walker, "run"), samplers.RowSampler
    picks: Calls = []

    def row_sampler(**arguments: Any) -> _Stopwatch:
        return _Stopwatch(picker(**arguments), "pick", picks)

    scheduler.program._walker = walker
    samplers.RowSampler = row_sampler  # type: ignore
    try:
        sampler = samplers.Sampler(config, decoder.vocab_size)
        bare, engine, pipeline, picking = [], [], [], []
        for _ in range(runs):
            logits = decoder.prefill(prompt)
            for _ in range(ANSWER_TOKENS):
                walker.calls.clear()
                picks.clear()
                begin = time.perf_counter()
                logits = decoder.decode(sampler.sample(logits, decoder.length).id)
                bare.append(time.perf_counter() - begin - _seconds_of(walker.calls) - _seconds_of(picks))
        decoder.close()
        prepared = prepare(session, TextRequest(prompt=prompt, config=config, stop=("never said",)))
        for _ in range(runs):
            walker.calls.clear()
            picks.clear()
            request = Request(prompt, config)
            scheduler.submit(request)
            request.wait()
            engine += walker.between(picks)
            picking += [end - begin for begin, end in picks]
            walker.calls.clear()
            start(session, prepared).result()
            pipeline += walker.between(picks)
    finally:
        scheduler.program._walker, samplers.RowSampler = walker.inner, picker  # type: ignore
    return {
        "engine_us": 1e6 * statistics.median(engine),
        "pipeline_us": 1e6 * statistics.median(pipeline),
        "decoder_us": 1e6 * statistics.median(bare),
        "sampler_us": 1e6 * statistics.median(picking),
    }


def report(title: str, values: dict[str, float]) -> str:
    """One readable line of numbers by their unit, printed and returned."""
    line = f"{title}: " + ", ".join(f"{value:.3g} {unit}" for unit, value in values.items())
    print("\n" + line, flush=True)
    return line


class _Stopwatch:
    """Stands for ``inner`` and notes in ``calls`` when each call of one of its methods was."""

    def __init__(self, inner: Any, method: str, calls: Calls | None = None) -> None:
        self.inner, self._call = inner, getattr(inner, method)
        self.calls: Calls = [] if calls is None else calls
        setattr(self, method, self._timed)

    def _timed(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        result = self._call(*arguments)
        self.calls.append((start, time.perf_counter()))
        return result

    def between(self, others: Calls) -> list[float]:
        """The seconds from each call to the next, without those of ``others``; the prompt's do not count."""
        gaps = [(before[1], after[0]) for before, after in itertools.pairwise(self.calls[2:])]
        return [
            end - begin - _seconds_of([call for call in others if begin <= call[0] < end])
            for begin, end in gaps
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _seconds_of(calls: Calls) -> float:
    return sum(end - begin for begin, end in calls)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _bandwidth(program: Any) -> float:
    from rase._kernels.limits import read_bandwidth

    return read_bandwidth(select_variant(), program.threads[0])


def _peak(program: Any) -> float:
    from rase._kernels.limits import fma_peak

    return fma_peak(select_variant(), program.threads[1])
