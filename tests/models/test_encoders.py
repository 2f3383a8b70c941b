"""Encoders against ``transformers``: a small random model's hidden rows, and that a text comes whole.

The expected rows are committed; tests/models/goldens/make_encoders.py writes them in an environment of its
own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.base import PROMPT, Batch
from rase.backends.reference import ReferenceBackend
from rase.errors import BackendError, CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.models import build
from rase.testing.programs import assert_close, assert_same_bits, run_chunks
from rase.testing.tiny import TINY_QWEN3
from rase.testing.tiny_encoders import ENCODERS, GOLDEN_IDS, GOLDEN_ROWS
from rase.testing.weights import MemoryWeights
from tests.support.backends import BACKENDS, backend_named
from tests.support.oracle import oracle

FOLDER = Path(__file__).parent / "goldens" / "encoders"
SAME, UNROUNDED_KV, BF16 = 1e-10, 1e-5, 2e-4
every = pytest.mark.parametrize("name", ENCODERS)


@every
@pytest.mark.parametrize("backend", BACKENDS)
def test_hidden_rows_are_those_of_transformers(name, backend):
    tiny = ENCODERS[name]
    with tiny.compile(backend_named(backend), numerics="portable", threads=1) as program:
        found = run_chunks(program, tiny.ids(GOLDEN_IDS))[list(GOLDEN_ROWS)]
    gate = SAME if backend == "reference" else UNROUNDED_KV
    assert_close(found, np.load(FOLDER / f"{name}.npy"), gate, name)


@every
def test_the_class_of_this_machine_stays_within_its_gate(name):
    tiny = ENCODERS[name].but(matrices="F16")
    with tiny.compile(ReferenceBackend()) as program:
        expected = run_chunks(program, tiny.ids(GOLDEN_IDS))
    with tiny.compile(get_backend("cpu"), threads=2) as program:
        found = run_chunks(program, tiny.ids(GOLDEN_IDS))
    assert_close(found, expected, BF16, name)


@every
def test_threads_and_company_change_no_bit(name):
    tiny = ENCODERS[name]
    texts = [tiny.ids(n, seed=n) for n in (1, 33, 90, 257)]
    for threads in (1, 2):
        with tiny.compile(get_backend("cpu"), threads=threads) as program:
            alone = [run_chunks(program, ids) for ids in texts]
            together = program.run(batch_of(texts))
        if threads == 1:
            first = alone
        for one, expected in zip(alone, first, strict=True):
            assert_same_bits(one, expected, f"{threads} threads")
        assert_same_bits(together, np.concatenate(first), "four texts in one step")


def batch_of(texts: list[list[int]]) -> Batch:
    """All tokens of several texts in one step, with pages of their own."""
    sizes = [len(ids) for ids in texts]
    pages = np.full((1, len(texts), 11), -1, np.int32)
    pages[0] = np.arange(11 * len(texts)).reshape(len(texts), 11)
    return Batch(
        ids=np.concatenate(texts).astype(np.int32),
        positions=np.concatenate([np.arange(n) for n in sizes]).astype(np.int32).reshape(1, -1),
        sequences=np.repeat(np.arange(len(texts)), sizes).astype(np.int32), page_tables=pages,
        roles=np.full(sum(sizes), PROMPT, np.uint8), logits_rows=np.arange(sum(sizes), dtype=np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", [0, 7])
def test_a_part_of_a_text_is_refused(backend, start):
    tiny = ENCODERS["bert"]
    with tiny.compile(backend_named(backend)) as program:
        batch = Batch.of([5], start, [0], PROMPT) if start else batch_of([[1, 2, 3], [4, 5]])
        if not start:
            batch.positions[0, 4] = 2  # a gap in the second text
        with pytest.raises(BackendError, match="not whole"):
            program.run(batch)


def test_an_encoder_does_not_generate():
    tiny = ENCODERS["bert"]
    with pytest.raises(ManifestError, match="embedding"):
        build(tiny.metadata, tiny.source.tensors)


def test_a_decoder_gives_the_rows_before_its_logits():
    metadata = TINY_QWEN3.but(extra={"pooling_type": 3}).metadata
    graph = build(metadata, TINY_QWEN3.source.tensors, kind="embedding")
    assert list(graph.outputs) == ["hidden"] and graph.output.dim == TINY_QWEN3.dim
    assert not graph.whole_input and "output.weight" not in graph.weights
    ids = TINY_QWEN3.ids(40)
    floats = MemoryWeights(dict(TINY_QWEN3.source.floats()))
    from rase.backends.base import CompileOptions

    with ReferenceBackend().compile(graph, floats, CompileOptions()) as program:
        program.reserve_pages(4)
        hidden = run_chunks(program, ids)
    logits = hidden.astype(np.float64) @ TINY_QWEN3.source.floats()["output.weight"].astype(np.float64).T
    assert_close(logits, oracle(TINY_QWEN3, ids), 1e-10)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"bert.attention.causal": True}, UnsupportedArchitecture),
        ({"bert.context_length": 300}, CorruptModelFile),  # the table has a row for each position
        ({"bert.attention.layer_norm_epsilon": None}, CorruptModelFile),
        ({"bert.expert_count": 8}, UnsupportedArchitecture),
    ],
)
def test_what_an_encoder_is_not_is_refused(changes, error):
    tiny = ENCODERS["bert"]
    metadata = {key: value for key, value in (tiny.metadata | changes).items() if value is not None}
    with pytest.raises(error):
        build(metadata, tiny.source.tensors, kind="embedding")


@pytest.mark.parametrize("mistake", ["causal", "no types", "SiLU"])
def test_the_gate_sees_a_mistake(mistake):
    """One wrong step each; the two forms of GELU differ by less than any gate (model-traps)."""
    from dataclasses import replace

    from rase.backends.base import CompileOptions
    from rase.graph import ops

    tiny = ENCODERS["bert"]
    graph = tiny.graph()
    wrong = []
    for op in graph.ops:
        if mistake == "causal" and isinstance(op, ops.Attention):
            op = replace(op, mask=ops.Causal())
        if mistake == "no types" and isinstance(op, ops.Embed) and op.index == "first":
            op = replace(op, scale=0.0)
        if mistake == "SiLU" and isinstance(op, ops.Activate):
            op = replace(op, kind="silu")
        wrong.append(op)
    with ReferenceBackend().compile(
        replace(graph, ops=tuple(wrong)), tiny.source, CompileOptions()
    ) as program:
        program.reserve_pages(10)
        found = run_chunks(program, tiny.ids(GOLDEN_IDS))[list(GOLDEN_ROWS)]
    with pytest.raises(AssertionError, match="NMSE"):
        assert_close(found, np.load(FOLDER / "bert.npy"), 2 * UNROUNDED_KV)
