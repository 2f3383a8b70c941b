"""SmolLM2 on the cpu backend, in short: near the float64 reference, the same bits on every way.

tests/proofs/test_01_numbers.py is the long form, on all of the prose.
"""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends.reference import ReferenceBackend
from rase.testing.programs import assert_close, assert_same_bits, decode_each, run_chunks
from tests.support.real import digest_of, digest_with, divergence, load, prose_ids

kernels = pytest.importorskip("rase._kernels.kernels")
ISAS = [name for name, missing in kernels.variants() if missing is None]
FLUSH_TO_ZERO = 0x9FC0

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def ids(smollm2):
    return prose_ids(smollm2, 24)


@pytest.fixture(scope="module")
def prompt(smollm2, ids):
    """The logits of all ids, as one prompt in the portable class, on two threads."""
    with load(smollm2, numerics="portable", threads=2) as program:
        return run_chunks(program, ids)


def test_it_is_near_the_reference(smollm2, ids, prompt):
    with load(smollm2, ReferenceBackend("float64")) as program:
        reference = run_chunks(program, ids)
    kl, top = divergence(prompt, reference)
    assert kl <= 1e-4 and top >= 0.95, f"mean KL {kl:.2g}, top-1 {top:.1%}"
    with load(smollm2, prefill="f32") as program:
        assert_close(run_chunks(program, ids), reference, 1e-5, "float32 prompt")
    with load(smollm2) as program:  # bf16 where this machine has it
        kl, top = divergence(run_chunks(program, ids), reference)
    assert kl <= 1.5e-3 and top >= 0.95, f"{program.numerics_class}: mean KL {kl:.2g}, top-1 {top:.1%}"
    with load(smollm2, numerics="portable", kv="q8_0") as program:
        kl, top = divergence(run_chunks(program, ids), reference)
    assert kl <= 3e-3 and top >= 0.95, f"{program.numerics_class}: mean KL {kl:.2g}, top-1 {top:.1%}"


@pytest.mark.parametrize("threads", [1, 3])
def test_decode_threads_and_chunks_change_no_bit(smollm2, ids, prompt, threads):
    with load(smollm2, numerics="portable", threads=threads) as program:
        assert_same_bits(decode_each(program, ids), prompt, f"decode on {threads} threads")
        assert_same_bits(run_chunks(program, ids, [7, 1, 16]), prompt, f"chunks on {threads} threads")


@pytest.mark.parametrize("prefill", ["auto", "f32"])
def test_threads_and_chunks_change_no_bit_in_any_class(smollm2, ids, prefill):
    """Of a prompt and of what is generated behind it: ``auto`` is bf16 on a processor with AMX."""
    with load(smollm2, prefill=prefill, threads=2) as program:
        expected = np.concatenate([run_chunks(program, ids), decode_each(program, ids[:3], start=len(ids))])
    for threads, chunks in ((1, [7, 1, 16]), (3, [23, 1]), (2, [1] * 24)):
        with load(smollm2, prefill=prefill, threads=threads) as program:
            found = [run_chunks(program, ids, chunks), decode_each(program, ids[:3], start=len(ids))]
        name = f"{program.numerics_class}, {threads} threads, {chunks}"
        assert_same_bits(np.concatenate(found), expected, name)


def test_the_callers_float_environment_changes_no_bit(smollm2, ids, prompt):
    before = kernels.float_environment()
    kernels.set_float_environment(FLUSH_TO_ZERO)
    try:
        with load(smollm2, numerics="portable") as program:
            found = run_chunks(program, ids)
    finally:
        kernels.set_float_environment(before)
    assert_same_bits(found, prompt, "flush to zero in the caller")


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_give_the_same_bits(smollm2, ids, isa):
    with load(smollm2, numerics="portable") as program:
        expected = digest_of(program, ids[:8])
    assert digest_with(isa, smollm2, 8) == expected
