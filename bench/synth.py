"""Makes GGUF files of random weights with the shapes and the mix of formats of real models: for speed only.

    python -m bench.synth qwen3-0.6b OUT.gguf [--tokenizer FOLDER]

The mix is Q4_K_M as llama.cpp's quantizer makes it: Q4_K, but Q6_K for the output matrix (or the tied
embedding) and, in an eighth of the layers at either end and every third between, for ``attn_v`` and
``ffn_down``. Blocks are drawn as they lie in the file, slice by slice, so a model of any size needs little
memory. A folder with the ``tokenizer.json`` and ``tokenizer_config.json`` of the model gives the real
vocabulary (Qwen3 only).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.vocabulary import Vocabulary, generated, real

__all__ = ["SHAPES", "Shape", "synthesize"]

SLICE = 1 << 14  # blocks drawn at a time: 4 MiB of weights
CONTEXT = 40960


@dataclass(frozen=True)
class Shape:
    """Dimensions of one model, from its published configuration."""

    architecture: str
    n_layers: int
    dim: int
    hidden_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    norm_eps: float
    pre_tokenizer: str
    tied: bool


def _qwen3(n_layers: int, dim: int, hidden_dim: int, n_heads: int) -> Shape:
    return Shape("qwen3", n_layers, dim, hidden_dim, n_heads, 8, 128, 151936, 1e6, 1e-6, "qwen2", True)


SHAPES = {
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32),
    "llama-3-8b": Shape(
        "llama", 32, 4096, 14336, 32, 8, 128, 128256, 5e5, 1e-5, "llama-bpe", tied=False
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file: ``shape`` in NumPy order, ``std`` of its weights (0: all ones)."""

    name: str
    shape: tuple[int, ...]
    format: str
    std: float = 0.0


def tensors(shape: Shape) -> Iterator[Tensor]:
    """The tensors in the order of the file."""
    dim, hidden = shape.dim, shape.hidden_dim
    heads, kv_heads = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    inner = 0.5 * dim**-0.5  # what reads the normalised stream keeps about its size
    outer = inner / shape.n_layers**0.5  # what adds to the stream lets it grow slowly

    def norm(name: str, size: int = dim) -> Tensor:
        return Tensor(f"{name}.weight", (size,), "F32")

    yield Tensor("token_embd.weight", (shape.vocab_size, dim), "Q6_K" if shape.tied else "Q4_K", 0.03)
    yield norm("output_norm")
    if not shape.tied:
        yield Tensor("output.weight", (shape.vocab_size, dim), "Q6_K", 0.03)
    for i in range(shape.n_layers):
        layer = f"blk.{i}"
        more = "Q6_K" if _more_bits(i, shape.n_layers) else "Q4_K"
        yield norm(f"{layer}.attn_norm")
        yield norm(f"{layer}.ffn_norm")
        if shape.architecture == "qwen3":
            yield norm(f"{layer}.attn_q_norm", shape.head_dim)
            yield norm(f"{layer}.attn_k_norm", shape.head_dim)
        yield Tensor(f"{layer}.attn_q.weight", (heads, dim), "Q4_K", inner)
        yield Tensor(f"{layer}.attn_k.weight", (kv_heads, dim), "Q4_K", inner)
        yield Tensor(f"{layer}.attn_v.weight", (kv_heads, dim), more, inner)
        yield Tensor(f"{layer}.attn_output.weight", (dim, heads), "Q4_K", outer)
        yield Tensor(f"{layer}.ffn_gate.weight", (hidden, dim), "Q4_K", inner)
        yield Tensor(f"{layer}.ffn_up.weight", (hidden, dim), "Q4_K", inner)
        yield Tensor(f"{layer}.ffn_down.weight", (dim, hidden), more, outer)


def _more_bits(layer: int, n_layers: int) -> bool:
    """Whether llama.cpp's ``use_more_bits`` gives the layer's attn_v and ffn_down Q6_K."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def synthesize(shape: Shape, path: Path, vocabulary: Vocabulary, seed: int = 0) -> Path:
    """Write the model to ``path`` (complete or not at all) and return it. Same arguments, same bytes."""
    import gguf

    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(str(part), shape.architecture)
    _describe(writer, shape, path.stem)
    vocabulary.write(writer)
    listed = list(tensors(shape))
    for tensor in listed:
        kind = gguf.GGMLQuantizationType[tensor.format]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row = (*tensor.shape[:-1], tensor.shape[-1] // block * block_bytes)
        nbytes = int(np.prod(row))
        writer.add_tensor_info(tensor.name, row, np.dtype(np.uint8), nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out, rng = writer.fout[0], np.random.default_rng(seed)
    writer.write_padding(out, out.tell())
    for tensor in listed:
        nbytes = sum(out.write(piece) for piece in _pieces(tensor, rng))
        writer.write_padding(out, nbytes)
    writer.close()
    return part.replace(path)


def _describe(writer: Any, shape: Shape, name: str) -> None:
    writer.add_name(f"{name}, random weights")
    writer.add_file_type(15)  # mostly Q4_K_M
    writer.add_context_length(CONTEXT)
    writer.add_block_count(shape.n_layers)
    writer.add_embedding_length(shape.dim)
    writer.add_feed_forward_length(shape.hidden_dim)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_pre(shape.pre_tokenizer)


def _pieces(tensor: Tensor, rng: np.random.Generator) -> Iterator[memoryview]:
    """The bytes of a tensor, in slices."""
    size = int(np.prod(tensor.shape))
    if tensor.format == "F32":
        yield memoryview(np.ones(size, "<f4")).cast("B")
        return
    blocks = _BLOCKS[tensor.format]
    for start in range(0, size // 256, SLICE):
        yield memoryview(blocks(min(SLICE, size // 256 - start), tensor.std, rng).reshape(-1))


def _random(n: int, block_bytes: int, rng: np.random.Generator) -> np.ndarray:
    words = rng.integers(0, 2**64, n * block_bytes // 8 + 1, np.uint64)
    return words.view(np.uint8)[: n * block_bytes].reshape(n, block_bytes)


def _halves(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _q4_k(n: int, std: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of ``block_q4_K``: d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles.

    Scales are 32..63 (of the upper four 32..47) and equal the minima: with dmin = 7.5 d that centres the
    weights.
    """
    blocks = _random(n, 144, rng)
    d = std / (44.3 * 4.61) * rng.uniform(0.8, 1.2, n)
    blocks[:, 0:2], blocks[:, 2:4] = _halves(d), _halves(7.5 * d)
    blocks[:, 4:8] = blocks[:, 4:8] & 0x1F | 0xA0  # scales 0..3: 32 + random; of 4..7 the upper bits: 2
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17  # the lower bits of 4..7, of scale and minimum
    return blocks


def _q6_k(n: int, std: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of ``block_q6_K``: 192 bytes of quants, 16 int8 scales (16..31 here, of either sign), d."""
    blocks = _random(n, 210, rng)
    scales = blocks[:, 192:208]
    blocks[:, 192:208] = np.where(scales & 16, scales & 15 | 16, -(scales & 15 | 16).astype(np.int8))
    blocks[:, 208:210] = _halves(std / (23.9 * 18.5) * rng.uniform(0.8, 1.2, n))
    return blocks


_BLOCKS: dict[str, Callable[[int, float, np.random.Generator], np.ndarray]] = {"Q4_K": _q4_k, "Q6_K": _q6_k}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder with the model's tokenizer.json (or .xz)")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    vocabulary = (
        real(options.tokenizer, shape.vocab_size) if options.tokenizer else generated(shape.vocab_size)
    )
    path = synthesize(shape, options.out, vocabulary)
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
