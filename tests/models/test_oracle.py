"""Whole random models: each backend against the independent float64 decoder and the reference backend."""

from __future__ import annotations

import pytest

from rase.backends import get_backend
from rase.backends.reference import ReferenceBackend
from rase.testing.programs import assert_close, decode_each, nmse, run_chunks
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3, WIDE_LLAMA, WIDE_QWEN3, Tiny
from tests.support.backends import BACKENDS, backend_named
from tests.support.gguf_build import ALL_FORMATS
from tests.support.oracle import oracle

# Gates of design rule R9. The reference backend computes in float64 and rounds only its answer to float32.
EXACT = 1e-13
# R9 lets quantized weights cost 1e-3. With activations of 16 bits they cost 3e-10 to 1.3e-7 (three seeds of
# every quantized format, both architectures), so all formats are held to the gates of floats.
ROUNDED_KV, UNROUNDED_KV = 1e-6, 1e-5

VARIANTS: dict[str, Tiny] = {
    "llama": TINY_LLAMA,
    "qwen3": TINY_QWEN3,
    "llama tied": TINY_LLAMA.but(tied=True),
    "qwen3 tied": TINY_QWEN3.but(tied=True),
    "llama one kv head": TINY_LLAMA.but(n_kv_heads=1),
    "llama all kv heads": TINY_LLAMA.but(n_kv_heads=4),
    "qwen3 one kv head": TINY_QWEN3.but(n_kv_heads=1),
    "llama wide heads": TINY_LLAMA.but(head_dim=48),
    "llama partial rotary": TINY_LLAMA.but(rope_dim=8),
    "llama factors": TINY_LLAMA.but(factors=(1, 1, 1.5, 2, 3, 4, 8, 8), theta=500000.0),
    "llama linear scaling": TINY_LLAMA.but(rope_scale=4.0),
    "qwen3 linear scaling": TINY_QWEN3.but(rope_scale=2.5),
    "llama window": TINY_LLAMA.but(window=9),
    "llama window of 1": TINY_LLAMA.but(window=1),
    "llama biases": TINY_LLAMA.but(biases=True),
    "llama odd sizes": TINY_LLAMA.but(dim=72, hidden=40, n_heads=6, n_kv_heads=3, head_dim=12, vocab=37),
    "llama one layer, one head": TINY_LLAMA.but(n_layers=1, n_heads=1, n_kv_heads=1, head_dim=64),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_agrees_with_the_oracle(variant, backend):
    tiny = VARIANTS[variant]
    ids = tiny.ids(70)  # three pages
    with tiny.compile(backend_named(backend), numerics="portable", threads=1) as program:
        found = run_chunks(program, ids)
        assert_close(decode_each(program, ids[:40]), found[:40], 1e-12, "decode against prefill")
    assert_close(found, oracle(tiny, ids), EXACT if backend == "reference" else UNROUNDED_KV)


WRONG = {
    "eps": {"eps": 1e-3},
    "theta": {"theta": 9000.0},
    "pairing": {"pairing": "half"},
    "scale": {"rope_scale": 1.1},
    "window": {"window": 60},
}


@pytest.mark.parametrize("mistake", WRONG)
def test_the_gates_catch_a_decoder_with_one_wrong_constant(mistake):
    ids = TINY_LLAMA.ids(70)
    error = nmse(oracle(TINY_LLAMA, ids, **WRONG[mistake]), oracle(TINY_LLAMA, ids))
    assert error > 2 * UNROUNDED_KV, f"a wrong {mistake} costs only {error:.3g}: the gate would not see it"


@pytest.mark.parametrize("fmt", ALL_FORMATS)
@pytest.mark.parametrize("tiny", [WIDE_LLAMA, WIDE_QWEN3], ids=["llama", "qwen3"])
def test_every_format_agrees_with_the_oracle_on_the_reference_backend(tiny, fmt):
    tiny = tiny.but(matrices=fmt)
    ids = tiny.ids(40)
    with tiny.compile(ReferenceBackend()) as program:
        assert_close(run_chunks(program, ids), oracle(tiny, ids), EXACT, fmt)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("role", ["prompt", "generated"])
@pytest.mark.parametrize("fmt", ALL_FORMATS)
@pytest.mark.parametrize("tiny", [WIDE_LLAMA, WIDE_QWEN3], ids=["llama", "qwen3"])
def test_every_format_is_within_the_gates_of_the_reference(tiny, fmt, role, backend):
    tiny = tiny.but(matrices=fmt)
    ids = tiny.ids(40)
    run = run_chunks if role == "prompt" else decode_each
    with tiny.compile(get_backend(backend), numerics="portable", threads=1) as program:
        found = run(program, ids)
    for kv_dtype, gate in (("float16", ROUNDED_KV), ("float64", UNROUNDED_KV)):
        with tiny.compile(ReferenceBackend(kv_dtype)) as program:
            expected = run_chunks(program, ids)
        assert_close(found, expected, gate, f"{fmt}, kv {kv_dtype}")


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("fmt", ALL_FORMATS)
def test_float32_prefill_is_within_the_float_gate_for_every_format(fmt, backend):
    """The hybrid prefill multiplies float32 activations: quantized weights cost it nothing."""
    tiny = WIDE_LLAMA.but(matrices=fmt)
    ids = tiny.ids(40)
    with tiny.compile(get_backend(backend), prefill="f32", threads=1) as program:
        found = run_chunks(program, ids)
    with tiny.compile(ReferenceBackend("float16")) as program:
        assert_close(found, run_chunks(program, ids), ROUNDED_KV, fmt)
