"""Synthetic models: the formats of llama.cpp's Q4_K_M, centred weights of the size asked for, a real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.synth import _BLOCKS, SHAPES, Tensor, synthesize, tensors
from bench.vocabulary import generated, real
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import format_named
from rase.gguf.reader import GgufFile
from rase.session import ModelSession

SMALL = replace(
    SHAPES["qwen3-0.6b"], n_layers=2, dim=256, hidden_dim=512, n_heads=4, n_kv_heads=2, vocab_size=1500
)  # fmt: skip
# Bytes of the published Q4_K_M files of these models, which have other metadata and padding.
PUBLISHED = {"qwen3-0.6b": 396_705_472, "qwen3-4b": 2_497_280_256, "llama-3-8b": 4_920_734_272}


def nbytes(tensor: Tensor) -> int:
    return format_named(tensor.format).tensor_bytes(tensor.shape)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_mix_gives_files_of_the_published_size(name):
    size = sum(nbytes(tensor) for tensor in tensors(SHAPES[name]))
    assert 0.98 < size / PUBLISHED[name] < 1.0, f"{size} bytes of tensors beside a file of {PUBLISHED[name]}"


def test_the_layers_with_more_bits_are_those_of_llama_cpp():
    more = [t.name for t in tensors(SHAPES["qwen3-0.6b"]) if "ffn_down" in t.name and t.format == "Q6_K"]
    layers = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert more == [f"blk.{i}.ffn_down.weight" for i in layers]


@pytest.mark.parametrize("name", _BLOCKS)
def test_blocks_are_centred_and_as_wide_as_asked(name):
    blocks = _BLOCKS[name](2000, 0.05, np.random.default_rng(3))
    weights = dequantize(format_named(name), blocks, (2000, 256))
    assert abs(weights.mean()) < 0.01 * 0.05
    assert weights.std() == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_runs_and_its_logits_have_a_sensible_size(tmp_path: Path, tied):
    shape = replace(SMALL, tied=tied)
    path = synthesize(shape, tmp_path / "small.gguf", generated(shape.vocab_size))
    with GgufFile.open(path) as file:
        found = {name: (info.shape, info.format.name) for name, info in file.tensors.items()}
    assert found == {tensor.name: (tensor.shape, tensor.format) for tensor in tensors(shape)}
    session = ModelSession.load_file(path)
    ids = session.tokenizer.encode("What is the capital of France?", True)
    logits = session.decoder.prefill(ids)
    assert np.isfinite(logits).all() and 0.1 < logits.std() < 100
    assert session.tokenizer.decode(ids) == "What is the capital of France?"
    assert (
        synthesize(shape, tmp_path / "again.gguf", generated(1500)).read_bytes()[-9999:]
        == path.read_bytes()[-9999:]
    )


def test_the_real_vocabulary(qwen3_tokenizer: Path):
    vocabulary = real(qwen3_tokenizer, 151936)
    assert len(vocabulary.tokens) == len(vocabulary.types) == 151936
    assert vocabulary.tokens[151644:151646] == ["<|im_start|>", "<|im_end|>"]
