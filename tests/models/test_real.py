"""Real files: SmolLM2 through the reference backend against the oracle, Gemma through the cpu backend."""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.base import PROMPT, Batch, CompileOptions
from rase.backends.reference import ReferenceBackend
from rase.gguf.dequantize import dequantize
from rase.gguf.reader import GgufFile
from rase.gguf.stream import HashedTensors
from rase.models import build
from rase.testing.programs import assert_close, run_chunks
from tests.support.oracle import oracle_logits

# "The capital of France is", and the token that SmolLM2 finds most likely after it
IDS, PARIS = ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"], "ĠParis"


@pytest.mark.real
def test_smollm2_agrees_with_the_oracle_and_knows_the_capital_of_france(smollm2):
    with GgufFile.open(smollm2) as file:
        graph = build(file.metadata, file.tensors, architecture="llama3", context_length=64)
        pieces = file.metadata["tokenizer.ggml.tokens"]
        ids = [pieces.index(piece) for piece in IDS]
        with ReferenceBackend().compile(graph, HashedTensors(file), CompileOptions()) as program:
            program.reserve_pages(1)
            found = program.run(Batch.of(ids, 0, [0], PROMPT, range(len(ids))))
        weights = {name: dequantize(t.format, file.read(t), t.shape) for name, t in file.tensors.items()}
    assert pieces[found[-1].argmax()] == PARIS
    expected = oracle_logits(
        ids, weights, n_layers=30, n_heads=9, n_kv_heads=3, head_dim=64, pairing="neighbour",
        theta=file.metadata["llama.rope.freq_base"],
        eps=file.metadata["llama.attention.layer_norm_rms_epsilon"],
    )  # fmt: skip
    assert_close(found, expected, 1e-13)


@pytest.mark.real
def test_gemma_continues_as_on_the_reference(gemma):
    """The three best tokens of the reference backend; tests/proofs/test_03_gemma.py says how near."""
    with GgufFile.open(gemma) as file:
        graph = build(file.metadata, file.tensors)
        pieces = file.metadata["tokenizer.ggml.tokens"]
        ids = [pieces.index(piece) for piece in ["<bos>", "The", "▁capital", "▁of", "▁France", "▁is"]]
        with get_backend("cpu").compile(graph, HashedTensors(file), CompileOptions()) as program:
            program.reserve_pages(1)
            found = run_chunks(program, ids)
    assert [group.window for group in graph.caches] == [512, None]
    assert [group.n_layers for group in graph.caches] == [15, 3]
    assert [pieces[i] for i in np.argsort(-found[-1])[:3]] == ["▁the", "▁a", "▁Paris"]
