"""Pooling, packing and chunks of embedding models: the vectors never depend on how texts shared steps."""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.base import CompileOptions
from rase.backends.reference import ReferenceBackend
from rase.engine.embedder import Embedder
from rase.engine.kv_cache import PagePool
from rase.errors import Cancelled, ContextLengthExceeded, InsufficientMemory, InvalidLogits, InvalidRequest
from rase.models import build
from rase.testing.programs import assert_close, assert_same_bits, run_chunks
from rase.testing.tiny import TINY_QWEN3, ZOO
from rase.testing.tiny_encoders import ENCODERS

WAYS = ("mean", "cls", "last")
LENGTHS = (3, 1, 90, 33, 200, 64)
DECODER = TINY_QWEN3.but(window=40, extra={"pooling_type": 3})
RECURRENT = ZOO["qwen35"].but(extra=ZOO["qwen35"].extra | {"pooling_type": 3})


def embedder(tiny, pooling, backend=None, budget=2**26, **options) -> Embedder:
    graph = build(tiny.metadata, tiny.source.tensors, kind="embedding")
    backend = backend or get_backend("cpu")
    program = backend.compile(graph, tiny.source, CompileOptions(threads=2, **options))
    return Embedder(program, PagePool(program, budget), pooling)


def texts_of(tiny) -> list[list[int]]:
    return [tiny.ids(n, seed=n) for n in LENGTHS]


@pytest.mark.parametrize("pooling", WAYS)
def test_vectors_are_pooled_rows_of_length_one(pooling):
    tiny = ENCODERS["bert"]
    one = embedder(tiny, pooling, ReferenceBackend())
    texts = texts_of(tiny)
    found = one.embed(texts)
    one.program.reserve_pages(10)
    for vector, ids in zip(found, texts, strict=True):
        rows = run_chunks(one.program, ids).astype(np.float64)
        row = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]
        assert_close(vector, row / np.linalg.norm(row), 1e-12, pooling)
        assert abs(np.linalg.norm(vector.astype(np.float64)) - 1) < 1e-6
    cut = one.embed(texts, dimensions=10)
    assert cut.shape == (len(texts), 10)
    again = found[:, :10] / np.linalg.norm(found[:, :10].astype(np.float64), axis=1, keepdims=True)
    assert_close(cut, again, 1e-12, "the first ten, of length 1 again")


@pytest.mark.parametrize("pooling", WAYS)
@pytest.mark.parametrize(
    "tiny", [ENCODERS["bert"], DECODER, RECURRENT], ids=["encoder", "decoder", "recurrent"]
)
def test_company_and_chunks_change_no_bit(tiny, pooling):
    texts = texts_of(tiny)
    wide = embedder(tiny, pooling, max_batch_tokens=512)
    together = wide.embed(texts)
    alone = np.concatenate([wide.embed([ids]) for ids in texts])
    assert_same_bits(together, alone, "texts in one step")
    narrow = embedder(tiny, pooling, max_batch_tokens=200 if wide.program.graph.whole_input else 37)
    assert_same_bits(narrow.embed(texts), alone, "in small steps")
    assert_same_bits(narrow.embed(texts[::-1])[::-1].copy(), alone, "in another order")
    page = sum(wide.program.page_bytes)
    tight = embedder(tiny, pooling, budget=9 * page, max_batch_tokens=512)
    assert_same_bits(tight.embed(texts), alone, "with pages for one text at a time")
    for one in (wide, narrow, tight):
        assert set(one.pool.in_use) == {0}, "pages that nobody uses are free"


def test_a_text_above_the_limit_is_refused_before_it_runs():
    encoder = embedder(ENCODERS["bert"], "mean", max_batch_tokens=64)
    assert encoder.longest == 64
    encoder.check([1] * 64)
    for wrong, error in (
        ([], InvalidRequest), ([1] * 65, ContextLengthExceeded), ([101], InvalidRequest),
        ([-1], InvalidRequest),
    ):  # fmt: skip
        with pytest.raises(error):
            encoder.check(wrong)
    small = embedder(
        ENCODERS["bert"], "mean", budget=2 * sum(encoder.program.page_bytes), max_batch_tokens=320
    )
    with pytest.raises(InsufficientMemory):
        small.check([1] * 65)


def test_what_stops_an_embedding_leaves_no_page():
    one = embedder(DECODER, "mean", max_batch_tokens=37)
    asked = iter([False, False, True])
    with pytest.raises(Cancelled):
        one.embed(texts_of(DECODER), cancelled=lambda: next(asked))
    assert set(one.pool.in_use) == {0}
    zero = ENCODERS["bert"].but(seed=8)
    for name in ("blk.1.layer_output_norm.weight", "blk.1.layer_output_norm.bias"):
        zero.source.raw[name] = bytes(len(zero.source.raw[name]))
    with pytest.raises(InvalidLogits, match="length"):
        embedder(zero, "mean").embed([[1, 2]])
