"""A folder as a model of the store: registered, verified, shown, run; every byte of it under its hash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rase.card import card_lines, model_card
from rase.cli.common import size_text
from rase.completion import TextRequest, prepare, run
from rase.engine.config import GenerationConfig
from rase.errors import (
    CorruptModelFile,
    IntegrityMismatch,
    ManifestError,
    ModelFileNotFound,
    UnsupportedArchitecture,
)
from rase.registry import ModelManifest
from rase.registry.manifest import list_digest
from rase.session import ModelSession
from rase.store import ModelRegistry, open_store
from tests.support import hf_folder, toys
from tests.support.toy_tokenizers import toy_bpe

GREEDY = GenerationConfig(temperature=0.0, max_tokens=8)
NAMES = [
    "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.chain(tmp_path_factory.mktemp("gguf"), ["H", "e", "l", "o"])


@pytest.fixture
def folder(gguf: Path, tmp_path: Path) -> Path:
    folder = hf_folder.from_gguf(gguf, tmp_path / "Hello-1B", toy_bpe().write_json(tmp_path), shards=2)
    (folder / "README.md").write_text("not a part of the model")
    (folder / "consolidated.safetensors").write_text("the same weights again, as some folders have them")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ModelRegistry:
    return open_store(tmp_path / "store")


@pytest.fixture
def manifest(store: ModelRegistry, folder: Path) -> ModelManifest:
    return store.import_local("hello", folder).manifest


def answers(session: ModelSession) -> list[list[int]]:
    text = prepare(session, TextRequest(prompt=" the", config=GREEDY))
    chat = prepare(session, TextRequest(messages=[{"role": "user", "content": "hi the"}], config=GREEDY))
    return [run(session, one).choices[0].token_ids for one in (text, chat)]


def test_a_folder_answers_like_the_file_of_its_weights(manifest: ModelManifest, gguf: Path) -> None:
    file, session = ModelSession.load_file(gguf), ModelSession.load(manifest)
    assert answers(session) == answers(file) and [len(ids) for ids in answers(session)] == [4, 4]
    assert session.end_tokens == file.end_tokens and session.eos_token == file.eos_token
    assert session.context_length == file.context_length
    assert session.chat_template is not None and session.chat_template.name == "gguf"


def test_the_manifest_lists_what_makes_the_model(manifest: ModelManifest, store, folder: Path) -> None:
    assert manifest.format == "safetensors" and manifest.weights == str(folder)
    assert manifest.architecture == "llama" and manifest.context_length == 4096
    assert [os.path.relpath(file.path, folder) for file in manifest.files] == NAMES
    assert manifest.sha256 == list_digest(manifest.files, str(folder))
    assert store.get("hello") == manifest == store.verify("hello")


def test_a_path_needs_no_store(folder: Path, manifest: ModelManifest) -> None:
    session = ModelSession.load_file(folder)
    assert session.manifest.files == manifest.files and session.manifest.sha256 == manifest.sha256
    assert session.id == "Hello-1B"


@pytest.mark.parametrize("name", NAMES)
def test_a_byte_that_changes_is_found(
    store: ModelRegistry, manifest: ModelManifest, folder, name: str
) -> None:
    data = bytearray((folder / name).read_bytes())
    at = -1 if name.endswith(".safetensors") else len(data)  # a value, or a blank behind the document
    data[at:] = b"\1" if at < 0 else b" "
    (folder / name).write_bytes(data)
    with pytest.raises(IntegrityMismatch) as caught:
        store.verify("hello")
    assert caught.value.path == str(folder / name)
    with pytest.raises(IntegrityMismatch) as caught:
        ModelSession.load(manifest)
    assert caught.value.path == str(folder / name)


def test_a_file_that_comes_or_goes_is_found(manifest: ModelManifest, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("another")
    with pytest.raises(ManifestError, match="6 weight files"):
        ModelSession.load(manifest)
    (folder / "chat_template.jinja").unlink()
    (folder / NAMES[1]).unlink()
    with pytest.raises(ModelFileNotFound, match=NAMES[1]):
        ModelSession.load(manifest)


def test_what_cannot_run_is_not_registered(store: ModelRegistry, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    for changes, error in (
        ({"architectures": ["LlavaModel"]}, UnsupportedArchitecture),
        ({"num_hidden_layers": 5}, CorruptModelFile),
        ({"hidden_size": "wide"}, CorruptModelFile),
    ):  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(error):
            store.import_local("bad", folder)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ManifestError, match="context"):
        store.import_local("bad", folder, context_length=5000)
    with pytest.raises(ManifestError, match="architecture"):
        store.import_local("bad", folder, architecture="qwen3")
    assert store.ids() == []


def test_the_card(manifest: ModelManifest) -> None:
    card = model_card(manifest)
    assert card["architecture"] == "llama" and card["tokenizer"] == "tokenizer.json"
    assert card["general"] == {"name": "Hello-1B"} and card["template"] == "gguf"
    assert card["groups"]["attention"]["formats"] == {"F32": 1.0}
    assert any(line.startswith("memory") for line in card_lines(card, size_text))


def test_templates_and_end_tokens_of_a_folder(folder: Path) -> None:
    tokenizer = toy_bpe()
    ends = [tokenizer.id("<|eot_id|>"), tokenizer.eos_id]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    templates = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ bos_token }}one"},
    ]
    table = {"bos_token": "<B>", "chat_template": templates}
    (folder / "tokenizer_config.json").write_text(json.dumps(table))
    session = ModelSession.load_file(folder)
    assert set(ends) <= session.end_tokens and session.eos_token == ends[0]
    assert session.chat_template is not None
    assert session.chat_template.render([{"role": "user", "content": "x"}]) == "<B>one"
    (folder / "chat_template.jinja").write_text("{{ bos_token }}two")
    session = ModelSession.load_file(folder)
    assert session.chat_template is not None
    assert session.chat_template.render([{"role": "user", "content": "x"}]) == "<B>two"


def test_a_folder_without_a_tokenizer_says_so(folder: Path, tmp_path: Path) -> None:
    tokenizer = (folder / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(Exception, match="tokenizer"):
        ModelSession.load_file(folder)
    assert ModelSession.load_file(folder, tokenizer=tokenizer).tokenizer.vocab_size == len(toy_bpe())
