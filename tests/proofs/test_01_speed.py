"""Proof 6 of list 01: decode, prefill and Python's share, against limits measured in the same run.

Company on the machine makes a single measurement look bad, so a failed one is repeated, at most three times;
the figure says which try it was.
"""

from __future__ import annotations

import pytest

from bench import measure
from bench.measure import Measured
from rase.session import ModelSession
from tests.support.gates import until

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(600)]
timer = measure.median_of(5)


@pytest.fixture(scope="module")
def session(smollm2):
    return ModelSession.load_file(smollm2)


def test_decode_reads_its_weights_at_40_per_cent_of_the_bandwidth(session, smollm2, figure):
    until(
        lambda found: found["share"] >= 0.40,
        lambda: measure.decode(session, smollm2, timer),
        lambda found: (
            f"decode {found['tokens_per_s']:.0f} tok/s = {found['gb_per_s']:.1f} GB/s, "
            f"{found['share']:.0%} of {found['bandwidth_gb_per_s']:.1f} GB/s"
        ),
        figure,
    )


def test_prefill_is_three_times_as_fast_per_token_as_decode(session, smollm2, figure):
    def attempt() -> Measured:
        answer = measure.decode(session, smollm2, timer)
        found = measure.prefill(session, timer)
        return {**found, "ratio": found["tokens_per_s"] / answer["tokens_per_s"]}

    until(
        lambda found: found["ratio"] >= 3,
        attempt,
        lambda found: f"prefill {found['tokens_per_s']:.0f} tok/s, {found['ratio']:.1f} times decode",
        figure,
    )


def test_python_costs_at_most_100_microseconds_for_each_token(session, figure):
    until(
        lambda found: found["engine_us"] <= 100,
        lambda: measure.overhead(session, runs=5),
        lambda found: (
            f"Python {found['engine_us']:.0f} us a token (with text {found['pipeline_us']:.0f} us, "
            f"by a decoder from another thread {found['decoder_us']:.0f} us)"
        ),
        figure,
    )


def test_float32_prefill_reaches_25_per_cent_of_the_fma_peak(smollm2, monkeypatch, figure):
    monkeypatch.setenv("RASE_PREFILL", "f32")
    session = ModelSession.load_file(smollm2)
    until(
        lambda found: found["share"] >= 0.25,
        lambda: measure.prefill(session, timer),
        lambda found: (
            f"f32 prefill {found['gflop_per_s']:.0f} GFLOP/s, {found['share']:.0%} of "
            f"{found['peak_gflop_per_s']:.0f}"
        ),
        figure,
    )
