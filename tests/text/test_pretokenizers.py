"""Each row of the table of pre-tokenizers cuts as its models' own tokenizer.json does: one telling text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from rase.text.pretokenizers import PRE_TOKENIZERS
from rase.text.tokenizer import LocalTokenizer
from tests.support.toy_tokenizers import toy_bpe

GOLDEN = json.loads((Path(__file__).parent / "goldens" / "cuts.json").read_text())
TEXT = "I'LL pay $1234, naïveCase — 東京2\r\n\n  end(s)"
# By family, the pieces; what tells them apart: contractions, digits, capitals in a word, blanks, brackets.
CUTS = {
    "cl100k, digits by three": (
        "I|'LL| pay| $|123|4|,| naïveCase| —| 東京|2|\r\n\n| | end|(s|)",
        ["llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "midm-2.0", "dbrx", "smaug-bpe", "minicpm5"],
    ),
    "cl100k, digits one by one": (
        "I|'LL| pay| $|1|2|3|4|,| naïveCase| —| 東京|2|\r\n\n| | end|(s|)",
        ["qwen2", "qwen35", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "seed-coder"],
    ),
    "o200k": (
        "I'LL| pay| $|123|4|,| naïve|Case| —| 東京|2|\r\n\n| | end|(s|)", ["gpt-4o", "llama4", "kanana2"],
    ),
    "o200k without contractions, digits one by one": (
        "I|'LL| pay| $|1|2|3|4|,| naïve|Case| —| 東京|2|\r\n\n| | end|(s|)",
        ["tekken", "pixtral"],
    ),
    "GPT-2": (
        "I|'|LL| pay| $|1234|,| naïveCase| —| 東京|2|\r\n\n | end|(|s|)",
        ["gpt-2", "phi-2", "a.x-4.0", "mellum", "trillion", "granite-docling", "olmo", "roberta-bpe"],
    ),
    "GPT-2, digits one by one": (
        "I|'|LL| pay| $|1|2|3|4|,| naïveCase| —| 東京|2|\r\n\n | end|(|s|)",
        ["smollm", "starcoder", "refact", "minerva-7b"],
    ),
    "Bloom, digits one by one": (
        "I'LL| pay| $|1|2|3|4|,| naïveCase| —| 東京|2|\r\n\n | end|(|s|)", ["viking"],
    ),
    "DeepSeek coder": (
        "I|'|LL| pay| $|1|2|3|4|,| naïveCase| |—| |東京|2|\r|\n|\n| | end|(|s|)", ["deepseek-coder"],
    ),
    "DeepSeek LLM": (
        "I|'|LL| pay| $|1|2|3|4|,| na|ï|veCase| |—| |東京|2|\r|\n|\n| | end|(|s|)", ["deepseek-llm"],
    ),
    "SuperBPE": ("I'LL pay $|1|234|, naïveCase — 東京|2|\r\n\n  end(s)", ["superbpe"]),
    "DeepSeek 3": ("I|'LL| pay| $|123|4|,| naïveCase| —| |東京|2|\r\n\n| | end|(s|)", ["deepseek-v3"]),
}  # fmt: skip


def test_every_row_is_here() -> None:
    assert sorted(name for _, names in CUTS.values() for name in names) == sorted(PRE_TOKENIZERS)


@pytest.mark.parametrize("family", CUTS)
def test_rows_cut_as_their_family_does(family: str) -> None:
    pieces, names = CUTS[family]
    for name in names:
        cuts = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str(TEXT)
        assert "|".join(TEXT[start:end] for _, (start, end) in cuts) == pieces, name


def test_marks_belong_to_words_in_qwen35_alone() -> None:
    text = "नमस्ते"  # letters and combining marks
    for name, count in (("qwen2", 3), ("qwen35", 1)):
        assert len(PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str(text)) == count, name


def _ids(pre: str) -> list[list[int]]:
    """The texts of the golden by the row ``pre``."""
    tokens = GOLDEN["tokens"]
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": GOLDEN["merges"],
            "token_type": [1] * len(tokens), "add_bos_token": False}  # fmt: skip
    local = LocalTokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    return [local.encode(text, add_special_tokens=False) for text in GOLDEN["texts"]]


def _alike(pre: str, text: str) -> bool:
    """Whether llama.cpp cuts ``text`` as the models' own tokenizer.json does."""
    row = PRE_TOKENIZERS[pre]
    if row.nfc and unicodedata.normalize("NFC", text) != text:
        return False  # it does not normalise
    if pre in ("gpt-4o", "llama4", "kanana2", "tekken"):  # it knows capitals among A to Z, and no marks
        return all(
            character.isascii() or unicodedata.category(character)[0] not in "LM" for character in text
        )
    if pre == "deepseek-llm" and any(character.isnumeric() for character in text):
        return False  # it leaves runs of digits whole
    if pre in ("deepseek-llm", "deepseek-coder"):  # some blanks are none to it, and some end a line
        return all(character in " \t\r\n" or not character.isspace() for character in text)
    return True


@pytest.mark.parametrize("pre", [name for name in PRE_TOKENIZERS if name != "pixtral"])
def test_ids_are_those_of_llama_cpp(pre: str) -> None:
    """Merges reach over all boundaries here (goldens/make_cuts.py): one cut elsewhere, and an id differs."""
    (wanted,) = [family["ids"] for family in GOLDEN["families"] if pre in family["names"]]
    compared = 0
    for text, ids, expected in zip(GOLDEN["texts"], _ids(pre), wanted, strict=True):
        if _alike(pre, text):
            compared += 1
            assert ids == expected, (pre, text)
    assert compared > 10


def test_no_family_of_the_golden_is_another() -> None:
    """Else equal ids would say nothing."""
    families = [family["ids"] for family in GOLDEN["families"]]
    assert len({json.dumps(ids) for ids in families}) == len(families) > 10


def test_long_digits_come_in_threes_from_the_left() -> None:
    for name in ("llama-bpe", "gpt-4o", "deepseek-v3", "minicpm5"):
        cuts = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str("12345678")
        assert [end - start for _, (start, end) in cuts] == [3, 3, 2], name


def test_superbpe_takes_digits_by_three_from_the_right() -> None:
    cuts = PRE_TOKENIZERS["superbpe"].pre_tokenizer().pre_tokenize_str("a1234567 b")
    assert [end - start for _, (start, end) in cuts] == [1, 1, 3, 3, 2]


def test_roberta_puts_its_separator_after_a_text() -> None:
    toy = toy_bpe(control=("<s>", "</s>"), bos="<s>", eos="</s>", pre="llama-bpe", add_bos=True)
    ends = {"tokenizer.ggml.pre": "roberta-bpe", "tokenizer.ggml.seperator_token_id": toy.id("</s>")}
    local = LocalTokenizer.from_gguf(toy.metadata() | ends)
    ids = local.encode("a", parse_special=False)
    assert ids == [toy.id("<s>"), toy.byte(ord("a")), toy.id("</s>")]
