"""Proof 3 of list 01: SmolLM2 on all of the prose is near the float64 reference, with one set of bits."""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends.reference import ReferenceBackend
from rase.testing.programs import assert_same_bits, decode_each, nmse, run_chunks
from tests.support.real import digest_of, digest_with, divergence, load, prose_ids

kernels = pytest.importorskip("rase._kernels.kernels")
ISAS = [name for name, missing in kernels.variants() if missing is None]
CHUNKS = [[1] * 30, [64, 1, 63, 2], [31, 33, 100], [150]]

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ids(smollm2):
    found = prose_ids(smollm2)
    assert len(found) >= 150
    return found


@pytest.fixture(scope="module")
def prompts(smollm2, ids):
    """The logits of all ids as one prompt, by prompt arithmetic."""
    rows = {}
    for prefill in ("int8", "f32"):
        with load(smollm2, prefill=prefill, threads=2) as program:
            rows[prefill] = run_chunks(program, ids)
    return rows


@pytest.fixture(scope="module")
def reference(smollm2, ids):
    with load(smollm2, ReferenceBackend("float64")) as program:
        return run_chunks(program, ids)


@pytest.mark.parametrize("prefill", ["int8", "f32"])
def test_divergence_from_the_reference(prompts, reference, prefill, figure):
    kl, top = divergence(prompts[prefill], reference)
    error = nmse(prompts[prefill], reference)
    figure(f"{prefill} on {len(reference)} tokens: mean KL {kl:.1e}, top-1 {top:.1%}, NMSE {error:.1e}")
    assert kl <= 0.0035 and top >= 0.98
    assert error <= (1e-5 if prefill == "f32" else 1e-3)


def test_the_measure_sees_a_coarser_model(prompts, reference):
    """The test of the test: noise of 2 % of the logits' spread is far over the gate."""
    noise = np.random.default_rng(0).normal(0, 0.02 * reference.std(), reference.shape)
    assert divergence(reference + noise, reference)[0] > divergence(prompts["int8"], reference)[0]
    assert divergence(reference + 10 * noise, reference)[0] > 0.0035


def test_decode_gives_the_bits_of_prefill(smollm2, ids, prompts, figure):
    with load(smollm2, numerics="portable") as program:
        assert_same_bits(decode_each(program, ids), prompts["int8"], "token by token and at once")
    figure(f"decode = prefill over {len(ids)} tokens")


@pytest.mark.parametrize("prefill", ["int8", "f32"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_chunks(smollm2, ids, prompts, prefill, threads):
    with load(smollm2, prefill=prefill, threads=threads) as program:
        for chunks in CHUNKS:
            whole = [*chunks, len(ids) - sum(chunks)]
            assert_same_bits(
                run_chunks(program, ids, whole), prompts[prefill], f"{threads} threads, chunks {whole}"
            )
        answer = decode_each(program, ids[-4:], start=len(ids) - 4)
        if prefill == "int8":
            assert_same_bits(answer, prompts[prefill][-4:], f"{threads} threads, decode")


@pytest.mark.parametrize("state", [0x9FC0, 0x7F80], ids=["flush to zero", "toward zero"])
def test_the_callers_float_environment(smollm2, ids, prompts, state):
    before = kernels.float_environment()
    kernels.set_float_environment(state)
    try:
        found = {}
        for prefill in prompts:
            with load(smollm2, prefill=prefill) as program:
                found[prefill] = run_chunks(program, ids)
    finally:
        kernels.set_float_environment(before)
    for prefill, rows in found.items():
        assert_same_bits(rows, prompts[prefill], f"{prefill}, MXCSR {state:#x}")


def test_instruction_sets(smollm2, ids, figure):
    assert {"scalar", "avx2", "avx512"} <= set(ISAS), f"this machine can only prove {ISAS}"
    for count, isas in ((len(ids), [isa for isa in ISAS if isa != "scalar"]), (64, ISAS)):
        with load(smollm2, numerics="portable") as program:
            expected = digest_of(program, ids[:count])
        for isa in isas:
            assert digest_with(isa, smollm2, count) == expected, f"{isa} over {count} tokens"
    figure(f"same bits: decode and prefill, {'/'.join(ISAS)}, 1/2/3 threads, 5 chunkings, flush to zero")
