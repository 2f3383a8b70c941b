"""Decode of SmolLM2: tokens per second, how near to the memory's limit, what Python costs for each token."""

from __future__ import annotations

from bench import measure


def test_decode(load, smollm2, several, benchmark):
    found = measure.decode(load("int8"), smollm2, several)
    benchmark.extra_info.update(found)
    shown = {
        "tok/s": found["tokens_per_s"],
        "GB/s": found["gb_per_s"],
        "% of the bandwidth": 100 * found["share"],
    }
    measure.report("decode", {**shown, "GB/s measured": found["bandwidth_gb_per_s"]})


def test_python_overhead(load, benchmark):
    found: dict[str, float] = {}
    benchmark.pedantic(lambda: found.update(measure.overhead(load("int8"))), rounds=1)
    benchmark.extra_info.update(found)
    names = {"us engine": "engine_us", "us with text": "pipeline_us", "us by a decoder": "decoder_us"}
    shown = {words: found[name] for words, name in names.items()}
    measure.report("Python for each token", {**shown, "us compiled sampling, besides": found["sampler_us"]})
