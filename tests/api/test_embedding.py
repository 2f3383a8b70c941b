"""Embedding models through files, stores, Python and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rase
from rase.backends.cpu import REVISION
from rase.card import model_card
from rase.cli.app import rase as command_line
from rase.errors import ContextLengthExceeded, InvalidRequest, ManifestError, UnsupportedArchitecture
from rase.registry import ModelKind
from rase.store import open_store
from rase.testing.tiny_encoders import TinyEncoder
from tests.support.gguf_build import write_gguf
from tests.support.toy_wordpiece import VOCAB, metadata, source

TINY = TinyEncoder(vocab=len(VOCAB), context=64)


def file_of(folder: Path, name: str = "toy-bert", **changes: object) -> Path:
    keys = {key: value for key, value in (TINY.metadata | metadata() | changes).items() if value is not None}
    return write_gguf(folder / f"{name}.gguf", keys, TINY.source.floats())


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return file_of(tmp_path_factory.mktemp("encoders"))


def test_a_file_gives_vectors(path):
    with rase.load(path) as model:
        found = model.embed(["hello", "the unaffable", "hello"])
        assert found.shape == (3, TINY.dim) and found.dtype == np.float32
        assert found[0].tobytes() == found[2].tobytes() == model.embed("hello")[0].tobytes()
        hello = VOCAB.index("hello")
        assert model.embed([[2, hello, 3]])[0].tobytes() == found[0].tobytes(), "ids are taken as they are"
        assert model.embed([2, hello, 3]).tobytes() == found[0].tobytes()
        assert model.embed("hello", dimensions=8).shape == (1, 8)
        assert model.context_length == 64
        with pytest.raises(InvalidRequest, match="no text"):
            model.chat("hello")
        with pytest.raises(InvalidRequest, match="no text"):
            model.complete("hello")


def test_a_generator_embeds_nothing(tiny_path):
    with rase.load(tiny_path) as model, pytest.raises(InvalidRequest, match="embedding"):
        model.embed("hello")


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ("x " * 63, ContextLengthExceeded), (["a", 5], InvalidRequest), ([], InvalidRequest),
        (7, InvalidRequest), ([[1, "a"]], InvalidRequest), ([[]], InvalidRequest), ([[9999]], InvalidRequest),
        (None, InvalidRequest), (["a"] * 2049, InvalidRequest),
    ],
)  # fmt: skip
def test_bad_input_is_refused(path, texts, error):
    with rase.load(path) as model:
        with pytest.raises(error):
            model.embed(texts)
        for dimensions in (0, TINY.dim + 1, 2.0, True):
            with pytest.raises(InvalidRequest, match="dimensions"):
                model.embed("a", dimensions=dimensions)
        assert model.embed("a").shape == (1, TINY.dim)


def test_a_store_knows_what_a_file_is_for(path, tmp_path):
    store = open_store(tmp_path / "store")
    imported = store.import_local("toy", path)
    assert imported.manifest.kind is ModelKind.EMBEDDING
    with rase.load("toy", tmp_path / "store") as model, rase.load(path) as file:
        assert model.embed("hello").tobytes() == file.embed("hello").tobytes()
    with pytest.raises(InvalidRequest, match="no text"):
        rase.generate_registered_gguf(tmp_path / "store", "toy", "hello")
    card = model_card(imported.manifest)
    assert (card["architecture"], card["tokenizer"], card["template"]) == ("bert", "bert", None)
    assert card["layers"] == TINY.n_layers and imported.problems == ()
    with pytest.raises(ManifestError, match="embedding"):
        store.import_local("wrong", path, kind="generator")
    rase.unload_models()


def test_an_attached_tokenizer_gives_the_same_vectors(path, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(source())
    with rase.load(path, tokenizer=tmp_path / "tokenizer.json") as attached, rase.load(path) as own:
        assert attached.embed("hello unaffable").tobytes() == own.embed("hello unaffable").tobytes()


@pytest.mark.parametrize("pooling", [None, 0, 4, 9])
def test_a_file_that_does_not_say_how_to_pool_is_refused(pooling, tmp_path):
    wrong = file_of(tmp_path, **{"bert.pooling_type": pooling})
    with pytest.raises(UnsupportedArchitecture, match="pooling"):
        rase.load(wrong)


def test_the_command_line(path, tmp_path):
    run = CliRunner().invoke(command_line, ["embed", str(path), "hello", "the unaffable"])
    assert run.exit_code == 0, run.output
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    with rase.load(path) as model:
        found = model.embed(["hello", "the unaffable"])
    assert [np.asarray(line["embedding"], np.float32).tobytes() for line in lines] == [
        row.tobytes() for row in found
    ]
    assert [line["index"] for line in lines] == [0, 1]
    run = CliRunner().invoke(command_line, ["embed", str(path)], input="hello\nthe unaffable\n")
    assert run.stdout.splitlines() and len(run.stdout.splitlines()) == 2


def test_vectors_are_of_the_class_that_every_machine_has(path, monkeypatch):
    with rase.load(path) as model:
        assert model.embedder.numerics_class == f"cpu-{REVISION}/int8/kv-f16"
    monkeypatch.setenv("RASE_KV", "q8_0")  # for generators: an embedding model has no cache
    monkeypatch.setenv("RASE_PREFILL", "f32")
    with rase.load(path) as model:
        assert model.embedder.numerics_class == f"cpu-{REVISION}/f32/kv-f16"


def test_the_asynchronous_twin_gives_the_same(path):
    import asyncio

    with rase.load(path) as model:
        found = asyncio.run(model.aembed(["hello", "the unaffable"]))
        assert found.tobytes() == model.embed(["hello", "the unaffable"]).tobytes()


def test_threads_share_a_model(path):
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"hello {'un' * n}" for n in range(1, 9)]
    with rase.load(path) as model, ThreadPoolExecutor(4) as pool:
        alone = [model.embed(text).tobytes() for text in texts]
        assert [vector.tobytes() for vector in pool.map(model.embed, texts * 3)] == alone * 3
        assert model.embedder.active == 0
