"""Embedded tokenizers of the real files against an independent conversion (goldens/make_goldens.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rase.gguf.reader import GgufFile
from rase.text.select import choose_template
from rase.text.tokenizer import LocalTokenizer

pytestmark = pytest.mark.real
GOLDENS = Path(__file__).parent / "goldens"


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDENS / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2: Path) -> dict[str, Any]:
    with GgufFile.open(smollm2) as file:
        return file.metadata


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_metadata: dict[str, Any]) -> LocalTokenizer:
    return LocalTokenizer.from_gguf(smollm2_metadata)


def check_ids(local: LocalTokenizer, wanted: dict[str, Any]) -> None:
    for text, ids in zip(wanted["texts"], wanted["ids"], strict=True):
        assert local.encode(text, add_special_tokens=False) == ids, repr(text)
    assert local.encode("a") == wanted["bos"]


def test_smollm2_ids(smollm2_tokenizer: LocalTokenizer) -> None:
    local = smollm2_tokenizer
    check_ids(local, golden("smollm2"))
    assert local.end_ids == {0, 2}
    assert not local.add_bos


def test_gemma_ids(gemma: Path) -> None:
    with GgufFile.open(gemma) as file:
        local = LocalTokenizer.from_gguf(file.metadata)
    check_ids(local, golden("gemma"))
    assert local.end_ids == {1, 106}
    assert local.add_bos and local.bos_id == 2


@pytest.mark.parametrize("chat", golden("smollm2")["chats"], ids=lambda chat: chat["name"])
def test_smollm2_chats_with_the_template_of_the_file(
    smollm2_metadata: dict[str, Any], smollm2_tokenizer: LocalTokenizer, chat: dict[str, Any]
) -> None:
    template = choose_template(None, smollm2_metadata, "mistral")
    assert template is not None and template.name == "gguf"
    segments = template.render_segments(chat["messages"], chat["add_generation_prompt"])
    assert "".join(segment.text for segment in segments) == chat["text"]
    assert smollm2_tokenizer.encode_segments(segments) == chat["ids"]
