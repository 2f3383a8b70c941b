"""Proof 2 of list 03: Gemma-3-270M (Q4_K_M) on all of the prose, and what it says after three prompts."""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends.reference import ReferenceBackend
from rase.gguf.reader import GgufFile
from rase.testing.programs import assert_same_bits, decode_each, run_chunks
from rase.text.tokenizer import LocalTokenizer
from tests.support.real import divergence, load, prose_ids

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(600)]

PROMPTS = {
    "The capital of France is": "France",  # a base model: its best token here is "the", as the reference says
    "1, 2, 3, 4, 5, 6,": "7",
    "Water is made of hydrogen and": "oxygen",
}


@pytest.fixture(scope="module")
def ids(gemma):
    found = prose_ids(gemma)
    assert len(found) >= 150
    return found


@pytest.fixture(scope="module")
def reference(gemma, ids):
    with load(gemma, ReferenceBackend("float64")) as program:
        return run_chunks(program, ids)


@pytest.mark.parametrize("prefill", ["int8", "f32"])
def test_divergence_from_the_reference(gemma, ids, reference, prefill, figure):
    with load(gemma, prefill=prefill, threads=2) as program:
        found = run_chunks(program, ids)
    kl, top = divergence(found, reference)
    figure(f"{prefill} on {len(ids)} tokens: mean KL {kl:.1e} (gate 0.005), top-1 {top:.1%} (gate 95 %)")
    assert kl <= 0.005 and top >= 0.95


def test_one_set_of_bits(gemma, ids):
    with load(gemma, numerics="portable", threads=1) as program:
        expected = run_chunks(program, ids)
    with load(gemma, numerics="portable", threads=2) as program:
        assert_same_bits(run_chunks(program, ids, [31, 1, 60, len(ids) - 92]), expected, "2 threads, chunks")
        assert_same_bits(decode_each(program, ids), expected, "token by token")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_readable_and_stable(gemma, prompt, figure):
    texts = set()
    for threads in (1, 2):
        for _ in range(2):
            texts.add(continuation(gemma, prompt, 24, threads))
    assert len(texts) == 1, texts
    text = texts.pop()
    figure(f"{prompt!r} -> {text!r}")
    assert PROMPTS[prompt] in text and text.isprintable() | ("\n" in text)


def continuation(path, prompt, count, threads):
    """The greedy text after a prompt."""
    with GgufFile.open(path) as file:
        tokenizer = LocalTokenizer.from_gguf(file.metadata)
    ids = list(tokenizer.encode(prompt, True))
    start = len(ids)
    with load(path, threads=threads) as program:
        rows = run_chunks(program, ids)
        while len(ids) - start < count:
            ids.append(int(np.argmax(rows[-1])))
            rows = decode_each(program, ids[-1:], start=len(ids) - 1)
    return tokenizer.decode(ids[start:])
