"""Small GGUF models with known answers: CHAIN, LOGITS, HIST, TINY-LLAMA and TINY-QWEN3.

Every function writes ``folder / (name + ".gguf")`` and returns the path. Common keywords:

``tokenizer``      the ``ToyTokenizer`` to embed (default: ``toy_bpe()``, for HIST ``hist_tokenizer()``)
``chat_template``  the Jinja text to embed (default: CHATML; HIST: none), or None for none
``metadata``       further or other metadata; a key with the value None is left out
``tensors``        further or other tensors, values as ``write_gguf`` takes them; None leaves one out
``context_length`` default 4096
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rase.testing.blocks import random_blocks
from rase.testing.tiny import Tiny
from tests.support.gguf_build import K_QUANTS, weights, write_gguf
from tests.support.toy_tokenizers import CHATML, ToyTokenizer, toy_bpe, toy_spm

__all__ = [
    "CHATML", "ToyTokenizer", "chain", "from_tiny", "hist", "hist_tokenizer", "logits", "model_metadata",
    "tiny_llama", "tiny_qwen3", "toy_bpe", "toy_spm",
]  # fmt: skip


def model_metadata(
    architecture: str,
    *,
    dim: int,
    hidden_dim: int,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    vocab_size: int,
    head_dim: int | None = None,
    context_length: int = 4096,
    norm_eps: float = 1e-5,
    rope_theta: float = 10000.0,
) -> dict[str, Any]:
    """The ``general.*`` and ``<architecture>.*`` keys; without ``head_dim`` no key_length."""
    keys: dict[str, Any] = {
        "block_count": n_layers, "context_length": context_length, "embedding_length": dim,
        "feed_forward_length": hidden_dim,
        "attention.head_count": n_heads, "attention.head_count_kv": n_kv_heads,
        "attention.layer_norm_rms_epsilon": float(norm_eps), "rope.freq_base": float(rope_theta),
        "rope.dimension_count": head_dim or dim // n_heads, "vocab_size": vocab_size,
    }  # fmt: skip
    if head_dim is not None:
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": architecture, "general.name": "toy"} | own


def chain(
    folder: Path,
    tokens: Sequence[int | str],
    *,
    then: int | str | None = None,
    name: str = "chain",
    tokenizer: ToyTokenizer | None = None,
    chat_template: str | None = CHATML,
    output_rows: int | None = None,
    context_length: int = 4096,
    n_layers: int = 1,
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, Any] = {},
) -> Path:
    """CHAIN: a llama model whose greedy output after any prompt is ``tokens``, then the end token (``eos``).

    ``tokens`` are ids, or pieces for ``tokenizer.id``; no token twice (``ValueError``), since the last token
    alone decides the next. Every token outside the chain is followed by the first one, so the prompt must
    not end with a token of the chain (a ChatML prompt ends with the byte of a line feed). ``then`` is what
    follows the last token instead of ``eos``: the first token again makes an endless loop. The successor's
    logit is sqrt(dim), all others are 0; dim is the vocabulary size rounded up to 32, all weights are F32.
    """
    tokenizer = tokenizer or toy_bpe()
    ids = [tokenizer.id(token) for token in tokens]
    if len(set(ids)) != len(ids):
        raise ValueError("a token comes twice: the chain cannot tell its places apart")
    rows = output_rows or len(tokenizer)
    dim = -(-rows // 32) * 32
    successor = np.full(rows, ids[0])
    successor[ids] = [*ids[1:], tokenizer.eos_id if then is None else tokenizer.id(then)]
    output = np.zeros((rows, dim), dtype=np.float32)
    output[successor, np.arange(rows)] = 1
    own = _quiet_layers(dim, n_layers) | {
        "token_embd.weight": np.eye(rows, dim, dtype=np.float32),
        "output.weight": output,
    }
    keys = model_metadata(
        "llama", dim=dim, hidden_dim=32, n_layers=n_layers, n_heads=dim // 32, n_kv_heads=1, vocab_size=rows,
        context_length=context_length, norm_eps=1e-12,
    )  # fmt: skip
    return _write(folder, name, keys, own, tokenizer, chat_template, metadata, tensors)


def logits(
    folder: Path,
    values: Sequence[float],
    *,
    rest: float = -30.0,
    name: str = "logits",
    tokenizer: ToyTokenizer | None = None,
    chat_template: str | None = CHATML,
    output_rows: int | None = None,
    context_length: int = 4096,
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, Any] = {},
) -> Path:
    """LOGITS: a llama model of width 32 whose logits are ``values``, then ``rest``, after any prompt.

    Exact in float arithmetic for values of at most 19 significant bits. ``output_rows`` (default: the size
    of the tokenizer) may exceed the tokenizer: the model is then padded.
    """
    tokenizer = tokenizer or toy_bpe()
    rows = output_rows or len(tokenizer)
    wanted = np.full(rows, rest, dtype=np.float32)
    wanted[: len(values)] = values
    output = np.repeat(wanted.reshape(-1, 1) / np.float32(32), 32, axis=1)
    own = _quiet_layers(32, 1) | {
        "token_embd.weight": np.ones((rows, 32), dtype=np.float32),
        "output.weight": output,
    }
    keys = model_metadata(
        "llama", dim=32, hidden_dim=32, n_layers=1, n_heads=1, n_kv_heads=1, vocab_size=rows,
        context_length=context_length, norm_eps=1e-12,
    )  # fmt: skip
    return _write(folder, name, keys, own, tokenizer, chat_template, metadata, tensors)


def hist_tokenizer() -> ToyTokenizer:
    """The 64 tokens of HIST: <unk> <s> </s>, "▁A" to "▁Z" (3 to 28), "A" to "Z", "▁" (55), fillers.

    "A B" is ["▁A", "▁B"]; no BOS is added, and there are no byte tokens.
    """
    letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    words = ["▁" + letter for letter in letters]
    spm = toy_spm(words, control=(), add_bos=False, bytes_too=False)
    fillers = [f"▁filler{index}" for index in range(64 - len(spm))]
    return spm.with_(
        tokens=spm.tokens + fillers,
        types=spm.types + [1] * len(fillers),
        scores=spm.scores + [-1e6] * len(fillers),
    )


def hist(
    folder: Path,
    *,
    name: str = "hist",
    tokenizer: ToyTokenizer | None = None,
    chat_template: str | None = None,
    context_length: int = 4096,
    n_heads: int = 1,
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, Any] = {},
) -> Path:
    """HIST: a llama model of 64 tokens and width 64 whose logits show what its attention sees.

    They are proportional to onehot(last token) + 8/k * (count of each token among the k visible positions).
    ``n_heads`` splits the width; the answer is the same.
    """
    eye, zero = np.eye(64, dtype=np.float32), np.zeros((64, 64), dtype=np.float32)
    own = _quiet_layers(64, 1) | {
        "token_embd.weight": eye, "output.weight": eye,
        "blk.0.attn_q.weight": zero, "blk.0.attn_k.weight": zero,
        "blk.0.attn_v.weight": eye, "blk.0.attn_output.weight": eye,
    }  # fmt: skip
    keys = model_metadata(
        "llama", dim=64, hidden_dim=32, n_layers=1, n_heads=n_heads, n_kv_heads=n_heads, vocab_size=64,
        context_length=context_length, norm_eps=1e-12,
    )  # fmt: skip
    return _write(folder, name, keys, own, tokenizer or hist_tokenizer(), chat_template, metadata, tensors)


def tiny_llama(folder: Path, *, name: str = "tiny-llama", **options: Any) -> Path:
    """TINY-LLAMA: a llama model with seeded random weights. Options: those of ``_tiny``."""
    return _tiny(folder, name, "llama", **options)


def tiny_qwen3(folder: Path, *, name: str = "tiny-qwen3", **options: Any) -> Path:
    """TINY-QWEN3: the same with norms of the query and key heads. Options: those of ``_tiny``."""
    return _tiny(folder, name, "qwen3", **options)


def _tiny(
    folder: Path,
    name: str,
    architecture: str,
    *,
    fmt: str = "F32",
    tied: bool = False,
    dim: int | None = None,
    hidden_dim: int | None = None,
    n_layers: int = 2,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int | None = None,
    vocab_size: int | None = None,
    rope_theta: float = 10000.0,
    rope_factors: Sequence[float] | None = None,
    linear_scale: float | None = None,
    norm_eps: float = 1e-5,
    context_length: int = 1024,
    seed: int = 0,
    tokenizer: ToyTokenizer | None = None,
    chat_template: str | None = CHATML,
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, Any] = {},
) -> Path:
    """A random model of two layers and width 64 (256 for K-quants, whose blocks hold 256 weights).

    ``fmt``           format of all matrices; norms are F32. The embedding and the output, too, are in it
    ``tied``          leave out ``output.weight``
    ``dim``, ``hidden_dim``  width (64, K-quants 256) and feed-forward width (twice that)
    ``head_dim``      written as key_length and value_length when given (always for qwen3); else dim / n_heads
    ``vocab_size``    rows of embedding and output; default: the size of the tokenizer
    ``rope_factors``  the values of ``rope_freqs.weight`` (head_dim / 2)
    ``linear_scale``  writes rope.scaling.type "linear" with this factor
    Same options, same bytes: weights depend on ``seed`` and on the tensor's name, not on the other tensors.
    """
    tokenizer = tokenizer or toy_bpe()
    rows = vocab_size or len(tokenizer)
    dim = dim or (256 if fmt in K_QUANTS else 64)
    hidden_dim = hidden_dim or 2 * dim
    size = head_dim or dim // n_heads
    keys = model_metadata(
        architecture, dim=dim, hidden_dim=hidden_dim, n_layers=n_layers, n_heads=n_heads,
        n_kv_heads=n_kv_heads, vocab_size=rows, head_dim=size if architecture == "qwen3" else head_dim,
        context_length=context_length, norm_eps=norm_eps, rope_theta=rope_theta,
    )  # fmt: skip
    if linear_scale is not None:
        keys[f"{architecture}.rope.scaling.type"] = "linear"
        keys[f"{architecture}.rope.scaling.factor"] = float(linear_scale)
    matrices = {"token_embd.weight": (rows, dim)}
    norms = {"output_norm.weight": dim}
    for layer in range(n_layers):
        block = f"blk.{layer}."
        matrices |= {
            block + "attn_q.weight": (n_heads * size, dim), block + "attn_k.weight": (n_kv_heads * size, dim),
            block + "attn_v.weight": (n_kv_heads * size, dim),
            block + "attn_output.weight": (dim, n_heads * size),
            block + "ffn_gate.weight": (hidden_dim, dim), block + "ffn_up.weight": (hidden_dim, dim),
            block + "ffn_down.weight": (dim, hidden_dim),
        }  # fmt: skip
        norms |= {block + "attn_norm.weight": dim, block + "ffn_norm.weight": dim}
        if architecture == "qwen3":
            norms |= {block + "attn_q_norm.weight": size, block + "attn_k_norm.weight": size}
    if not tied:
        matrices["output.weight"] = (rows, dim)
    own: dict[str, Any] = {}
    for tensor, shape in matrices.items():
        own[tensor] = (random_blocks(fmt, shape, _rng(seed, tensor), std=shape[1] ** -0.5), shape, fmt)
    for tensor, length in norms.items():
        own[tensor] = (1 + 0.1 * _rng(seed, tensor).normal(size=length)).astype(np.float32)
    if rope_factors is not None:
        own["rope_freqs.weight"] = np.array(rope_factors, dtype=np.float32)
    return _write(folder, name, keys, own, tokenizer, chat_template, metadata, tensors)


def from_tiny(folder: Path, tiny: Tiny, *, name: str = "tiny") -> Path:
    """The model ``tiny`` as a file, with the vocabulary of ``toy_bpe``."""
    tokenizer = toy_bpe()
    tiny = tiny.but(vocab=len(tokenizer))
    source = tiny.source
    own = {n: (source.raw[n], info.shape, info.format.name) for n, info in source.tensors.items()}
    return _write(folder, name, tiny.metadata, own, tokenizer, CHATML, {}, {})


def tiny_weights(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a model file as float32 arrays by name, read with rase's own reader."""
    from rase.gguf.reader import GgufFile

    with GgufFile.open(path) as file:
        return {
            name: weights(file.read(info), info.shape, info.format.name)
            for name, info in file.tensors.items()
        }


def _rng(seed: int, tensor: str) -> np.random.Generator:
    return np.random.default_rng([seed, *tensor.encode()])


def _quiet_layers(dim: int, n_layers: int) -> dict[str, np.ndarray]:
    """Layers that add nothing, with one key-value head of 32 and all norm weights 1."""
    own = {"output_norm.weight": np.ones(dim, dtype=np.float32)}
    shapes = {
        "attn_q": (dim, dim), "attn_k": (32, dim), "attn_v": (32, dim), "attn_output": (dim, dim),
        "ffn_gate": (32, dim), "ffn_up": (32, dim), "ffn_down": (dim, 32),
    }  # fmt: skip
    for layer in range(n_layers):
        for tensor, shape in shapes.items():
            own[f"blk.{layer}.{tensor}.weight"] = np.zeros(shape, dtype=np.float32)
        for tensor in ("attn_norm", "ffn_norm"):
            own[f"blk.{layer}.{tensor}.weight"] = np.ones(dim, dtype=np.float32)
    return own


def _write(
    folder: Path,
    name: str,
    keys: dict[str, Any],
    own: dict[str, Any],
    tokenizer: ToyTokenizer,
    chat_template: str | None,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
) -> Path:
    template = {} if chat_template is None else {"tokenizer.chat_template": chat_template}
    values = keys | tokenizer.metadata() | template | dict(metadata)
    return write_gguf(
        Path(folder) / f"{name}.gguf",
        {key: value for key, value in values.items() if value is not None},
        {tensor: value for tensor, value in (own | dict(tensors)).items() if value is not None},
    )
