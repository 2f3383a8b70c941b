"""Reach: the least number of tokens never exceeds the true one, and is near it for monotonous text."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from rase.gguf.reader import GgufFile
from rase.text.reach import Reach
from rase.text.tokenizer import LocalTokenizer
from tests.support.texts import generated_texts
from tests.support.toy_tokenizers import toy_bpe, toy_spm


def stripping() -> bytes:
    """TOY-BPE as a tokenizer.json that composes text, with an end token that swallows blanks beside it."""
    data = json.loads(toy_bpe(pre="qwen2").json())
    data["normalizer"] = {"type": "NFC"}
    for token in data["added_tokens"]:
        token["lstrip"] = token["rstrip"] = token["content"] == "<|im_end|>"
    return json.dumps(data).encode()


TOKENIZERS = {
    "bpe": lambda: LocalTokenizer.from_gguf(toy_bpe().metadata()),
    "bpe with NFC": lambda: LocalTokenizer.from_gguf(toy_bpe(pre="qwen2").metadata()),
    "spm": lambda: LocalTokenizer.from_gguf(toy_spm().metadata()),
    "spm without bytes": lambda: LocalTokenizer.from_gguf(toy_spm(bytes_too=False).metadata()),
    "bpe json": lambda: LocalTokenizer.from_json(toy_bpe().json()),
    "spm json": lambda: LocalTokenizer.from_json(toy_spm().json()),
    "stripping json": lambda: LocalTokenizer.from_json(stripping()),
}


def texts() -> list[str]:
    """Strings of all classes, whole and decomposed, and runs that make the longest tokens there are."""
    random_ = random.Random(7)
    specials = ("<|im_end|>", "<think>", " " * 200, "hello" * 40, "▁Hello▁world" * 9, "\u212a\u0327" * 30)
    given = generated_texts(600, seed=3, specials=specials)
    given += [unicodedata.normalize("NFD", text) for text in given[:200]]
    given += [word * random_.randint(1, 60) for word in (*specials, "e\u0301", "\u0390", "=\u0338", "\u3000")]
    return ["".join(random_.sample(given, 3)) if place % 5 == 0 else text for place, text in enumerate(given)]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_text_has_fewer_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    for text in texts():
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False)), text


def test_no_text_has_fewer_tokens_in_the_real_models(smollm2: Path) -> None:
    with GgufFile.open(smollm2) as file:
        tokenizer = LocalTokenizer.from_gguf(file.metadata)
    longest = sorted(tokenizer._core.vocabulary.pieces, key=len)[-20:]
    for text in [*texts(), *(piece.decode("utf-8", "replace") * 30 for piece in longest)]:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False)), text


@pytest.mark.parametrize("name", ["bpe", "bpe with NFC", "spm", "bpe json", "spm json", "stripping json"])
def test_a_run_of_one_character_is_told_within_the_longest_token(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    for character in "a.":
        assert tokenizer.least_tokens(character * 10_000) >= 10_000 / 20
    assert tokenizer.least_tokens("é" + "a" * 10_000) >= 10_000 / 20


def test_where_text_can_vanish_nothing_is_promised() -> None:
    assert TOKENIZERS["spm without bytes"]().least_tokens("a" * 10_000) == 0
    blanks = TOKENIZERS["stripping json"]()
    text = "<|im_end|>" + " " * 10_000
    assert blanks.least_tokens(text) <= len(blanks.encode(text, add_special_tokens=False)) == 1


@pytest.mark.parametrize("part", [
    {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    {"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}},
])  # fmt: skip
def test_steps_that_shorten_text_by_an_unknown_amount(part: dict[str, Any]) -> None:
    tokenizer = LocalTokenizer.from_json(json.dumps({**json.loads(toy_bpe().json()), **part}).encode())
    assert tokenizer.least_tokens("a" * 10_000) == 0


def test_composing_shortens_no_character_more_than_reckoned() -> None:
    shrinks = grows = 0.0
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            size = len(chr(code).encode())
            apart = len(unicodedata.normalize("NFD", chr(code)).encode())
            shrinks, grows = max(shrinks, size / apart), max(grows, apart / size)
    assert shrinks * grows <= 9
    text = "\u0391\u0313\u0300\u0345\u212a\u0327" * 900  # composes as far as it goes
    assert Reach([b"x"], nfc=True).least(text) <= len(unicodedata.normalize("NFC", text).encode())
