"""Cases NUM-1, 3, 5, 7, 9 of public bug reports: numbers that are fluent and wrong."""

from __future__ import annotations

import numpy as np
import pytest

from rase.errors import CorruptModelFile, UnsupportedArchitecture
from rase.graph.ops import Logits
from rase.testing.programs import assert_close, assert_same_bits, decode_each, nmse, run_chunks
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3, Tiny
from rase.testing.weights import MemoryWeights
from tests.support.backends import BACKENDS, backend_named
from tests.support.oracle import oracle

GATE = 1e-5  # float weights against an oracle that rounds no K and V (design rule R9)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return backend_named(request.param)


def logits(tiny: Tiny, ids, backend) -> np.ndarray:
    with tiny.compile(backend, numerics="portable", threads=1) as program:
        return run_chunks(program, ids)


def swap(tiny: Tiny, **arrays: np.ndarray) -> Tiny:
    """The same model with some tensors replaced (names with __ for dots) and all of it F32."""
    tensors = tiny.source.floats() | {name.replace("__", "."): array for name, array in arrays.items()}
    changed = tiny.but(matrices="F32")
    changed.__dict__["source"] = MemoryWeights(tensors)
    return changed


@pytest.mark.parametrize("tiny", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("matrices", ["F32", "Q8_0"])
def test_num_1_tied_embeddings_and_an_explicit_copy_are_the_same_model(tiny, matrices, backend):
    tied = tiny.but(tied=True, matrices=matrices)
    copied = tied.but()
    raw = {
        name: (tied.source.raw[name], info.shape, info.format.name)
        for name, info in tied.source.tensors.items()
    }
    copied.__dict__["source"] = MemoryWeights({**raw, "output.weight": raw["token_embd.weight"]})
    last = [graph.ops[-1].weight.name for graph in (tied.graph(), copied.graph())]
    assert last == ["token_embd.weight", "output.weight"]

    ids = tiny.ids(40)
    found = logits(tied, ids, backend)
    assert_same_bits(logits(copied, ids, backend), found, "explicit copy")
    assert_close(found, oracle(tied, ids), GATE)


FACTORS = (1.0,) * 15 + (1.65133, 3.29226, 9.66673) + (32.0,) * 14


def test_num_3_frequency_factors_of_the_file_are_used(backend):
    tiny = TINY_LLAMA.but(head_dim=64, n_heads=2, n_kv_heads=1, theta=500000.0, factors=FACTORS)
    ids = tiny.ids(600)
    with tiny.compile(backend, numerics="portable", threads=1, max_batch_tokens=600) as program:
        found = run_chunks(program, ids)
    assert_close(found, oracle(tiny, ids), GATE)
    assert nmse(found, oracle(tiny, ids, use_factors=False)) > 100 * GATE


def neighbours(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of halves (i, i + d/2) as rows of neighbours (2i, 2i + 1), as converters write them for llama."""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def test_num_5_llama_rotates_neighbours_and_qwen3_halves(backend):
    """One set of weights in the row order of halves; the llama file holds its query and key rows permuted."""
    plain = TINY_LLAMA.but(context=64)
    arrays = plain.source.floats()
    permuted = {}
    for i in range(plain.n_layers):
        for name, heads in (("attn_q", plain.n_heads), ("attn_k", plain.n_kv_heads)):
            key = f"blk.{i}.{name}.weight"
            permuted[key] = neighbours(arrays[key], heads)
    ids = plain.ids(51)
    expected = oracle(plain, ids, pairing="half")[50]

    llama = swap(plain, **permuted)
    assert_close(logits(llama, ids, backend)[50], expected, GATE, "permuted rows, neighbouring pairs")
    assert nmse(logits(plain, ids, backend)[50], expected) > 100 * GATE, "rows that are not permuted"

    norms = {}
    for i in range(plain.n_layers):
        for name in ("attn_q_norm", "attn_k_norm"):
            norms[f"blk.{i}.{name}.weight"] = np.linspace(0.5, 1.5, plain.head_dim, dtype=np.float32)
    qwen3 = swap(plain, **norms).but(architecture="qwen3")
    qwen3.__dict__["source"] = MemoryWeights(arrays | norms)
    found = logits(qwen3, ids, backend)[50]
    assert_close(found, oracle(qwen3, ids)[50], GATE, "halves")
    assert nmse(found, oracle(qwen3, ids, pairing="neighbour")[50]) > 100 * GATE


@pytest.mark.parametrize("tiny", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4, "absent", "array"])
def test_num_7_numbers_of_kv_heads_that_fit(tiny, n_kv_heads, backend):
    count = {"absent": 4, "array": 2}.get(n_kv_heads, n_kv_heads)
    tiny = tiny.but(n_kv_heads=count)
    if n_kv_heads == "absent":
        tiny = tiny.but(extra={"attention.head_count_kv": None})
    elif n_kv_heads == "array":  # one value per layer, all equal
        tiny = tiny.but(extra={"attention.head_count_kv": np.full(tiny.n_layers, 2, np.int32)})
    assert tiny.graph().caches[0].n_kv_heads == count
    ids = tiny.ids(40)
    assert_close(logits(tiny, ids, backend), oracle(tiny, ids), GATE)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("value", [3, 0, np.array([2], np.int32), np.array([2, 3], np.int32), [2, "2"]])
def test_num_7_numbers_of_kv_heads_that_do_not_fit(architecture, value):
    tiny = TINY_LLAMA if architecture == "llama" else TINY_QWEN3
    tiny = tiny.but(n_kv_heads=2, extra={"attention.head_count_kv": value})
    with pytest.raises((CorruptModelFile, UnsupportedArchitecture)) as caught:
        tiny.graph()
    assert f"'{architecture}.attention.head_count_kv'" in str(caught.value)


def test_num_7_an_array_of_different_values_is_refused_by_name():
    tiny = TINY_LLAMA.but(extra={"attention.head_count_kv": np.array([2, 4], np.int32)})
    with pytest.raises(UnsupportedArchitecture, match=r"head_count_kv' differs between layers") as caught:
        tiny.graph()
    assert caught.value.found == "2, 4"


def test_num_9_rows_beyond_the_tokenizer_are_part_of_the_graph_and_can_be_read(backend):
    """Padding rows have logits and may stand in a prompt: the sampler is what never chooses them."""
    tiny = TINY_LLAMA.but(vocab=320, context=64)
    graph = tiny.graph()
    assert graph.vocab_size == 320 and isinstance(graph.ops[-1], Logits)
    with tiny.compile(backend, numerics="portable", threads=1) as program:
        found = run_chunks(program, [310])
        assert found.shape == (1, 320)
        assert_close(decode_each(program, [310]), found, 1e-12, "decode")
    assert_close(found, oracle(tiny, [310]), GATE)


def test_num_9_padded_ids_are_never_chosen(tmp_path):
    """Tokenizer of 300, output of 320 rows, the largest logit at id 310: id 17 is the best real one."""
    from rase.backends.base import CompileOptions
    from rase.backends.reference import ReferenceBackend
    from rase.engine.decoder import ProgramDecoder
    from rase.engine.generation import GenerationConfig, generate
    from rase.engine.kv_cache import PagePool
    from rase.engine.scheduler import Scheduler
    from rase.gguf.reader import GgufFile
    from rase.gguf.stream import HashedTensors
    from rase.models import build
    from tests.support.toys import logits as logits_model

    values = [0.0] * 320
    values[310], values[17] = 20.0, 10.0
    with GgufFile.open(logits_model(tmp_path, values, output_rows=320)) as file:
        graph = build(file.metadata, file.tensors)
        program = ReferenceBackend().compile(graph, HashedTensors(file), CompileOptions())
    with program:
        decoder = ProgramDecoder(Scheduler(program, PagePool(program, 2**20), vocab_size=300))
        greedy = GenerationConfig(max_tokens=3, temperature=0, logprobs=5)
        for prompt in ([1, 2], [310]):
            result = generate(decoder, prompt, greedy)
            assert result.tokens == [17, 17, 17]
            shown = [id for step in result.logprobs for id, _ in step.top]
            assert shown and max(shown) < 300, "logprobs leave padded ids out"
        hot = GenerationConfig(max_tokens=40, temperature=2.0, top_k=None, seed=3)
        assert max(generate(decoder, [310], hot).tokens) < 300
