"""What the source of llama.cpp holds of real models: vocabularies, the ids of their originals, templates.

03.sh fetches it, and renders the templates with transformers. Neither is part of this repository: they are
their vendors' own.
"""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import pytest

from rase.errors import EngineError
from rase.gguf.reader import GgufFile
from rase.text.chat import ChatTemplate
from rase.text.pretokenizers import PRE_TOKENIZERS
from rase.text.tokenizer import LocalTokenizer
from tests.text.families import CHATS, OPTIONS, SPECIAL
from tests.text.test_template_families import as_clients_send

pytestmark = pytest.mark.proof

OTHERWISE = {
    "tencent-Hy3": "calls str.format, which the sandbox refuses",
    "meetkai-functionary-medium-v3.1": "its |safe makes transformers escape what is added, as for HTML",
}


@pytest.fixture(scope="module")
def models() -> Path:
    found = os.environ.get("RASE_PROOF_VENDORS")
    if not found:
        pytest.skip("RASE_PROOF_VENDORS names no folder: wheelhouse-ci/proofs 03 --only vendors makes one")
    return Path(found)


def test_ids_of_real_vocabularies_are_those_of_their_own_tokenizers(models, figure):
    compared: dict[str, int] = {}
    for path in sorted(models.glob("ggml-vocab-*.gguf")):
        with GgufFile.open(path) as file:
            metadata = file.metadata
        kind, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
        texts, ids = (path.with_name(f"{path.name}.{end}") for end in ("inp", "out"))
        if not texts.exists() or kind not in ("gpt2", "llama", "bert") or (kind, pre) == ("gpt2", None):
            continue
        if kind == "gpt2" and pre not in PRE_TOKENIZERS:
            continue  # of an architecture that rase does not run
        nfc = kind == "gpt2" and PRE_TOKENIZERS[pre].nfc
        tokenizer = LocalTokenizer.from_gguf(metadata)
        lines = ids.read_text().splitlines()
        given = texts.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        name = path.stem.removeprefix("ggml-vocab-")
        for text, line in zip(given, lines, strict=False):  # the last text has no ids
            if nfc and unicodedata.normalize("NFC", text) != text:
                continue  # ids of llama.cpp, which does not normalise as the original does
            found = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert found == [int(word) for word in line.split()], (name, text)
            compared[name] = compared.get(name, 0) + 1
    figure(f"{sum(compared.values())} texts by {', '.join(compared)}")
    assert {"llama-bpe", "llama-spm", "qwen2", "qwen35", "deepseek-llm", "bert-bge"} <= compared.keys()
    assert min(compared.values()) >= 40


def test_templates_give_the_text_of_transformers(models, figure):
    """One that transformers refuses, such as for ``tools`` that are None where rase has none, is left out."""
    goldens: dict[str, dict[str, str | None]] = json.loads((models / "templates.json").read_text())
    differ: dict[str, str] = {}
    compared = 0
    for name, texts in goldens.items():
        source = (models / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
        template = ChatTemplate.from_source(source, bos=SPECIAL["bos_token"], eos=SPECIAL["eos_token"])
        for chat, messages in CHATS.items():
            for option, options in OPTIONS.items():
                if (wanted := texts[f"{chat}, {option}"]) is None:
                    continue
                compared += 1
                try:
                    found = template.render([as_clients_send(message) for message in messages], **options)
                except EngineError as error:
                    found = str(error)
                if found != wanted:
                    differ.setdefault(name, f"{chat}, {option}: {found[:200]}")
    figure(f"{compared} renderings of {len(goldens)} templates; otherwise: {', '.join(differ) or 'none'}")
    assert differ.keys() == OTHERWISE.keys(), differ
    assert compared > 3000
