"""The self-test of a file's tokenizer: what it says of files with one fault each; nothing of sound ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rase.errors import TokenizerError
from rase.gguf.reader import GgufFile
from rase.store import open_store
from rase.text.chat import ChatTemplate
from rase.text.selftest import problems_of
from rase.text.tokenizer import LocalTokenizer
from tests.support import toys
from tests.support.toy_tokenizers import CHATML, toy_bpe, toy_spm
from tests.support.toy_wordpiece import metadata as wordpiece

SOUND = toy_bpe(control=("<|begin_of_text|>", "<|im_start|>", "<|im_end|>"), eos="<|im_end|>", add_bos=True)


def said(metadata: dict[str, Any], template: str | None = CHATML, embedding: bool = False) -> list[str]:
    chat = None if template is None else ChatTemplate.from_source(template, bos="<|begin_of_text|>")
    return problems_of(LocalTokenizer.from_gguf(metadata), chat, metadata, embedding=embedding)


def test_nothing_is_said_of_sound_files() -> None:
    assert said(SOUND.metadata()) == []
    assert said(toy_spm().metadata(), None) == []
    assert said(wordpiece(), None, embedding=True) == []
    twice = (
        "{{ bos_token }}" + CHATML
    )  # a template that writes BOS where the file adds it, too: it comes once
    assert said(SOUND.metadata(), twice) == []


@pytest.mark.real
def test_nothing_is_said_of_real_files(smollm2: Path, gemma: Path) -> None:
    for path in (smollm2, gemma):
        with GgufFile.open(path) as file:
            assert said(file.metadata, None) == [], path.name


def test_each_fault_is_said() -> None:
    plain = SOUND.metadata()
    names = plain["tokenizer.ggml.tokens"]
    endless = toy_bpe(control=("<|im_start|>",), bos=None, eos="<|im_start|>")
    none = endless.metadata() | {"tokenizer.ggml.eos_token_id": 0xFFFFFFFF}  # how converters write "none"
    (ends,) = said(none, CHATML.replace("<|im_end|>", ""))
    assert "no token ends an answer" in ends
    (markup,) = said(plain, CHATML.replace("<|im_end|>", "<|eot_of_turn|>"))
    assert "writes <|eot_of_turn|>, which is no token" in markup
    (broken,) = said(plain, "{{ raise_exception('roles must alternate') }}")
    assert "does not render a plain chat" in broken and "roles must alternate" in broken
    more = {"tokenizer.ggml.tokens": [*names, names[0]], "tokenizer.ggml.token_type": [*SOUND.types, 1]}
    (twice,) = said(plain | more)
    assert twice.startswith("1 tokens of the vocabulary have a spelling that an earlier one has")


def test_text_that_a_vocabulary_loses_is_said() -> None:
    metadata = toy_spm(bytes_too=False).metadata()
    problems = said(metadata, None)
    assert len(problems) == 1 and "does not keep every text" in problems[0]


def test_a_special_token_that_text_can_make_is_refused() -> None:
    """Two tokens of one spelling: markup would give the first, and the file means the second."""
    names = SOUND.metadata()["tokenizer.ggml.tokens"]
    wrong = SOUND.metadata() | {
        "tokenizer.ggml.tokens": [*names, "<|im_end|>"],
        "tokenizer.ggml.token_type": [*SOUND.types, 3],
        "tokenizer.ggml.eos_token_id": len(names),
    }  # fmt: skip
    with pytest.raises(TokenizerError, match="cannot be told from text"):
        said(wrong)


def test_import_says_it_and_a_broken_vocabulary_waits_for_another_one(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    sound = store.import_local("sound", toys.chain(tmp_path, ["x"], tokenizer=toys.toy_bpe(pieces=["x"])))
    assert sound.problems == ()
    unknown = toys.chain(
        tmp_path, ["x"], tokenizer=toys.toy_bpe(pieces=["x"]), name="unknown",
        metadata={"tokenizer.ggml.pre": "zz-unknown"})  # fmt: skip
    (problem,) = store.import_local("unknown", unknown).problems
    assert "'zz-unknown'" in problem and "does not run before another one is attached" in problem
