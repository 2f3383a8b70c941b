"""Proofs of list 02 beside the machine's own limits, measured in the same run with the same threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import measure
from bench.models import synthetic
from rase.benchmark.speeds import Report
from rase.benchmark.speeds import measure as measure_session
from rase.session import ModelSession
from rase.testing.programs import assert_same_bits, run_chunks
from tests.support.gates import until

Figure = Callable[[str], None]
SINGLE = 12  # prompt tokens that are run one at a time

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]


def test_decode_of_4b_reads_at_85_per_cent_of_the_bandwidth(figure: Figure) -> None:
    session = ModelSession.load_file(synthetic("qwen3-4b"))

    def attempt() -> Report:
        return measure_session(session, prompts=(), contexts=(128,), tokens=24, rounds=5)

    def show(found: Report) -> str:
        rates = found.rates(found.speeds[0])
        assert found.limits is not None
        return (
            f"qwen3-4b decode {rates['tokens_per_s']:.2f} tok/s = {rates['gb_per_s']:.1f} GB/s, "
            f"{rates['bandwidth_share']:.0%} of {found.limits.read_gb_per_s:.1f} GB/s (goal 85%)"
        )

    until(lambda found: found.rates(found.speeds[0])["bandwidth_share"] >= 0.85, attempt, show, figure, 3)


def test_float32_prefill(monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    """At least half of the FMA peak, three times as fast as unpacking for each token, same bits in chunks."""
    monkeypatch.setenv("RASE_PREFILL", "f32")
    session = ModelSession.load_file(synthetic("qwen3-0.6b"))
    program, ids = session.decoder.program, measure.prompt_ids(session, measure.PROMPT_TOKENS)
    assert program.numerics_class.split("/")[1] == "f32"
    program.reserve_pages(-(-len(ids) // program.page_tokens))
    single = measure.median_of(3)(lambda: run_chunks(program, ids[:SINGLE], [1] * SINGLE)) / SINGLE
    whole = run_chunks(program, ids[:80])
    for chunks in ([1] * 80, [7, 1, 40, 32], [64, 16]):
        assert_same_bits(run_chunks(program, ids[:80], chunks), whole, f"chunks {chunks}")
    timer = measure.median_of(3)
    until(
        lambda found: found["share"] >= 0.5 and found["tokens_per_s"] * single >= 3,
        lambda: measure.prefill(session, timer),
        lambda found: (
            f"qwen3-0.6b f32 prefill {found['gflop_per_s']:.0f} GFLOP/s, {found['share']:.0%} of "
            f"{found['peak_gflop_per_s']:.0f} (goal 50%); {found['tokens_per_s'] * single:.1f} times "
            f"unpacking for each token (goal 3)"
        ),
        figure,
    )
