"""The toy models and tokenizers are what their docstrings say, by a float64 decoder of a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rase.gguf.reader import GgufFile
from tests.support import toys
from tests.support.toy_tokenizers import BPE_WORDS, ToyTokenizer


def last_logits(path: Path, ids: Sequence[int]) -> np.ndarray:
    """Logits after ``ids`` of a llama model with zero queries and keys: rotation does not matter."""
    tensor = {name: value.astype(np.float64) for name, value in toys.tiny_weights(path).items()}
    with GgufFile.open(path) as file:
        keys = file.metadata
    eps = keys["llama.attention.layer_norm_rms_epsilon"]
    heads, kv_heads = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * tensor[name]

    h = tensor["token_embd.weight"][list(ids)]
    for layer in range(keys["llama.block_count"]):
        block = f"blk.{layer}."
        assert not tensor[block + "attn_q.weight"].any() and not tensor[block + "ffn_down.weight"].any()
        x = norm(h, block + "attn_norm.weight")
        value = (x @ tensor[block + "attn_v.weight"].T).reshape(len(ids), kv_heads, -1)
        seen = np.cumsum(value, axis=0) / np.arange(1, len(ids) + 1).reshape(-1, 1, 1)
        seen = np.repeat(seen, heads // kv_heads, axis=1).reshape(len(ids), -1)
        h = h + seen @ tensor[block + "attn_output.weight"].T
    return norm(h, "output_norm.weight")[-1] @ tensor["output.weight"].T


def greedy(path: Path, ids: list[int], steps: int) -> list[int]:
    ids = list(ids)
    for _ in range(steps):
        ids.append(int(np.argmax(last_logits(path, ids))))
    return ids[-steps:]


def test_chain(tmp_path: Path) -> None:
    tokenizer = toys.toy_bpe(pieces=["alpha ", "be", "ta ga"])
    path = toys.chain(tmp_path, ["alpha ", "be", "ta ga", tokenizer.byte(0xF0)], tokenizer=tokenizer)
    wanted = [
        *map(tokenizer.id, ("alpha ", "be", "ta ga")),
        tokenizer.byte(0xF0),
        tokenizer.id("<|end_of_text|>"),
    ]
    for prompt in ([0], [tokenizer.byte(10)], [17, 300, 4], [tokenizer.eos_id]):
        assert greedy(path, prompt, 5) == wanted
    values = np.sort(last_logits(path, [5]))
    assert values[-1] == pytest.approx(np.sqrt(320)) and not values[:-1].any()


def test_an_endless_chain(tmp_path: Path) -> None:
    path = toys.chain(tmp_path, [65, 66], then=65, n_layers=2)
    assert greedy(path, [1], 6) == [65, 66] * 3


def test_a_chain_with_a_token_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        toys.chain(tmp_path, [65, 66, 65])


def test_logits(tmp_path: Path) -> None:
    path = toys.logits(tmp_path, [1, 2.5, 3], output_rows=320)
    assert last_logits(path, [9, 8]) == pytest.approx([1, 2.5, 3] + [-30] * 317, rel=1e-9)


@pytest.mark.parametrize("n_heads", [1, 4])
def test_hist_counts_what_attention_sees(tmp_path: Path, n_heads: int) -> None:
    tokenizer = toys.hist_tokenizer()
    path = toys.hist(tmp_path, n_heads=n_heads)
    prompt = [tokenizer.id("▁" + letter) for letter in "MABAA"]
    wanted = 8 / 5 * np.bincount(prompt, minlength=64)
    wanted[prompt[-1]] += 1
    found = last_logits(path, prompt)
    assert found / found.max() == pytest.approx(wanted / wanted.max(), abs=1e-9)


def encode(tokenizer: ToyTokenizer, text: str) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_str(tokenizer.json().decode()).encode(text).ids)


def decode(tokenizer: ToyTokenizer, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    return str(Tokenizer.from_str(tokenizer.json().decode()).decode(ids))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_every_word_of_toy_bpe_is_one_token(pre: str) -> None:
    tokenizer = toys.toy_bpe(pre=pre)
    for word in BPE_WORDS:
        if not (word == "123" and pre == "qwen2"):  # that splitter takes digits one by one
            assert encode(tokenizer, word) == [tokenizer.id(word)], word
    assert encode(tokenizer, "<|im_start|>ÿ") == [tokenizer.id("<|im_start|>"), 0xC3, 0xBF]
    text = "Hi the  wörld\n\n 😸"
    assert decode(tokenizer, encode(tokenizer, text)) == text


def test_toy_bpe_adds_bos_when_asked() -> None:
    tokenizer = toys.toy_bpe(add_bos=True)
    assert encode(tokenizer, "Hi") == [tokenizer.id("<|begin_of_text|>"), tokenizer.id("Hi")]
    assert tokenizer.metadata()["tokenizer.ggml.add_bos_token"] is True


def test_toy_spm() -> None:
    tokenizer = toys.toy_spm()
    ids = encode(tokenizer, "Hello big worldé")
    assert ids == [
        1,
        *map(tokenizer.id, ("▁Hello", "▁big", "▁world")),
        tokenizer.byte(0xC3),
        tokenizer.byte(0xA9),
    ]
    assert decode(tokenizer, ids) == "Hello big worldé"


def test_hist_tokenizer_has_64_tokens() -> None:
    tokenizer = toys.hist_tokenizer()
    assert len(tokenizer) == 64 == len(tokenizer.types) == len(tokenizer.scores)
    assert encode(tokenizer, "A B M") == [tokenizer.id("▁" + letter) for letter in "ABM"] == [3, 4, 15]


def test_tiny_models_are_reproducible_and_take_their_options(tmp_path: Path) -> None:
    first = toys.tiny_llama(tmp_path, name="a", fmt="Q4_0").read_bytes()
    assert first == toys.tiny_llama(tmp_path, name="b", fmt="Q4_0").read_bytes()
    path = toys.tiny_qwen3(
        tmp_path, tied=True, n_heads=8, n_kv_heads=1, head_dim=16, rope_factors=[1.0] * 8, linear_scale=2.0,
        metadata={"qwen3.vocab_size": None},
        tensors={"blk.0.attn_norm.weight": np.full(64, 2.0, dtype=np.float32)},
    )  # fmt: skip
    with GgufFile.open(path) as file:
        assert "output.weight" not in file.tensors and "qwen3.vocab_size" not in file.metadata
        assert file.tensors["blk.1.attn_q.weight"].shape == (128, 64)
        assert file.tensors["blk.1.attn_k.weight"].shape == (16, 64)
        assert file.tensors["blk.1.attn_q_norm.weight"].shape == (16,)
        assert (
            file.metadata["qwen3.rope.scaling.type"] == "linear"
            and file.metadata["qwen3.attention.key_length"] == 16
        )
    tensor = toys.tiny_weights(path)
    assert (tensor["blk.0.attn_norm.weight"] == 2).all() and tensor["rope_freqs.weight"].shape == (8,)
    assert 0.1 < tensor["blk.0.attn_q.weight"].std() < 0.15
