"""Bug cases TOK: tokenizers and pre-tokenizers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rase.errors import TokenizerError
from rase.gguf.reader import GgufFile
from rase.text.tokenizer import LocalTokenizer
from tests.support.gguf_build import write_gguf
from tests.support.toy_tokenizers import ToyTokenizer, toy_bpe, toy_spm

DIGITS = ("123", "456", "  ", "\n\n")
RUNS = ("Z" * 131_072, "한" * 50_000, "." * 200_000, " " * 200_000, "\n" * 200_000)


def through_gguf(toy: ToyTokenizer, folder: Path) -> LocalTokenizer:
    """The tokenizer as a GGUF file on disk gives it."""
    path = folder / "vocabulary.gguf"
    write_gguf(path, {"general.architecture": "llama", **toy.metadata()}, {})
    with GgufFile.open(path) as file:
        return LocalTokenizer.from_gguf(file.metadata)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_tok_1_the_pre_tokenizer_of_the_file_decides(tmp_path: Path, pre: str) -> None:
    toy = toy_bpe(words=DIGITS, pre=pre)
    local, text = through_gguf(toy, tmp_path), "1234567  a\n\n  b"
    ids = local.encode(text)
    assert ids == Tokenizer.from_str(toy.json().decode()).encode(text).ids
    digits = [local.piece(token) for token in ids if local.piece(token).isdigit()]
    assert digits == (["123", "456", "7"] if pre == "llama-bpe" else list("1234567"))


@pytest.mark.parametrize("pre", ["zz-unknown", "default", ""])
def test_tok_1_an_unknown_pre_tokenizer_is_an_error_that_names_it(tmp_path: Path, pre: str) -> None:
    with pytest.raises(TokenizerError, match=f"(?s){pre!r}.*attach") as caught:
        through_gguf(toy_bpe(words=DIGITS).with_(pre=pre), tmp_path)
    assert caught.value.data == {"pre": pre}


def test_tok_1_no_pre_tokenizer_is_an_error() -> None:
    metadata = toy_bpe(words=DIGITS).metadata()
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(TokenizerError, match="no such key"):
        LocalTokenizer.from_gguf(metadata)


@pytest.mark.parametrize("text", RUNS, ids=lambda text: repr(text[0]))
@pytest.mark.parametrize(
    "toy", [toy_bpe(), toy_bpe(pre="gpt-2", words=("ZZ", "..")), toy_spm()], ids=["llama", "gpt2", "spm"]
)
def test_tok_3_one_long_run_is_cut_in_time(toy: ToyTokenizer, text: str) -> None:
    for local in (LocalTokenizer.from_gguf(toy.metadata()), LocalTokenizer.from_json(toy.json())):
        started = time.process_time()
        ids = local.encode(text, add_special_tokens=False)
        assert time.process_time() - started < 2
        assert local.decode(ids) == text


@pytest.mark.real
@pytest.mark.parametrize("text", RUNS, ids=lambda text: repr(text[0]))
def test_tok_3_with_a_real_vocabulary(smollm2: Path, text: str) -> None:
    with GgufFile.open(smollm2) as file:
        local = LocalTokenizer.from_gguf(file.metadata)
    started = time.process_time()
    ids = local.encode(text)
    assert time.process_time() - started < 2
    assert local.decode(ids) == text


def test_tok_5_one_rule_for_the_leading_blank() -> None:
    toy = toy_spm()
    ids = [toy.id("▁Hello"), toy.id("▁big"), toy.id("▁world"), toy.id("</s>")]
    for local in (LocalTokenizer.from_gguf(toy.metadata()), LocalTokenizer.from_json(toy.json())):
        stream = local.stream()
        pieces = [stream.push(token) for token in ids] + [stream.flush()]
        assert pieces == ["Hello", " big", " world", "", ""]
        assert local.decode(ids) == "Hello big world"
        assert local.decode(ids) == Tokenizer.from_str(toy.json().decode()).decode(ids)


def test_tok_5_a_blank_of_the_answer_itself_stays() -> None:
    """Only the one blank that the vocabulary puts there goes; without a prefix blank nothing goes."""
    toy = toy_spm(words=("▁▁", "▁Hello"))
    ids = [toy.id("▁▁"), toy.id("▁Hello")]
    assert LocalTokenizer.from_gguf(toy.metadata()).decode(ids) == "  Hello"
    bare = toy_spm(words=("▁▁", "▁Hello"), add_space_prefix=False)
    assert LocalTokenizer.from_gguf(bare.metadata()).decode(ids) == "   Hello"
