"""Prefill of 512 tokens of SmolLM2: integer path beside decode, float32 beside the processor's FMA peak."""

from __future__ import annotations

from bench import measure


def test_prefill_int8(load, smollm2, several, benchmark):
    session = load("int8")
    found = measure.prefill(session, several)
    answer = measure.decode(session, smollm2, measure.median_of(3))
    found["times_decode"] = found["tokens_per_s"] / answer["tokens_per_s"]
    benchmark.extra_info.update(found)
    shown = {"tok/s": found["tokens_per_s"], "times the tok/s of decode": found["times_decode"]}
    measure.report("prefill int8", {**shown, "GOP/s": found["gflop_per_s"]})


def test_prefill_f32(load, several, benchmark):
    found = measure.prefill(load("f32"), several)
    benchmark.extra_info.update(found)
    shown = {
        "tok/s": found["tokens_per_s"],
        "GFLOP/s": found["gflop_per_s"],
        "% of the FMA peak": 100 * found["share"],
    }
    measure.report("prefill f32", {**shown, "GFLOP/s measured": found["peak_gflop_per_s"]})
