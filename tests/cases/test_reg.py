"""REG cases of public bug reports: names outside ASCII, and hubs that send something other than the model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rase import errors
from rase.registry import HuggingFaceHub, ModelRegistry, pull
from rase.store import open_store
from tests.support.fake_hub import FakeHub, HubEntry, fake_hub
from tests.support.stores import toy_gguf, toy_tokenizer

STORE = "Модели 模型 ☃ dir"
NAMES = [
    "a b'\"#=.gguf",
    "back\\slash.gguf",
    unicodedata.normalize("NFD", "Übergröße é.gguf"),
    "new\nline.gguf",
    "模型-☃.gguf",
    "%41 $(x) `y`.gguf",
]


@pytest.mark.parametrize("name", NAMES)
def test_reg_1_names_outside_ascii(tmp_path: Path, name: str) -> None:
    path = toy_gguf(tmp_path / "w.gguf").rename(tmp_path / name)
    tokenizer = toy_tokenizer(tmp_path / f"{name}.json")
    registry = ModelRegistry.open(tmp_path / STORE)
    manifest = registry.import_local("toy", path).manifest
    assert manifest.weights == str(path)  # decomposed stays decomposed
    manifest = registry.attach_tokenizer("toy", tokenizer)
    again = ModelRegistry.open(tmp_path / STORE)
    assert again.list() == [manifest] and again.verify("toy") == manifest
    assert manifest.to_toml().encode() == (registry.root / "manifests" / "toy.toml").read_bytes()


@pytest.mark.parametrize("language", ["C", "C.UTF-8"])
def test_reg_1_in_any_locale(tmp_path: Path, language: str) -> None:
    toy_gguf(tmp_path / "w.gguf").rename(tmp_path / NAMES[0])
    code = (
        "import sys; from rase.registry import ModelRegistry; r = ModelRegistry.open(sys.argv[1]);"
        "r.import_local('toy', sys.argv[2]); print(ascii(r.verify('toy').weights))"
    )
    path = tmp_path / NAMES[0]
    environment = {**os.environ, "LANG": language, "LC_ALL": language}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / STORE), str(path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ascii(str(path))


def test_reg_1_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.gguf")
    os.rename(toy_gguf(tmp_path / "w.gguf"), path)
    registry = ModelRegistry.open(tmp_path / "store")
    with pytest.raises(errors.InvalidRequest, match="Rename the file"):
        registry.import_local("toy", path)
    assert registry.list() == []


def test_reg_1_a_model_in_such_a_place_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_BACKEND", "reference")  # paths are the same to every backend
    from rase import load
    from tests.support.toys import chain

    (tmp_path / "ш").mkdir()
    path = chain(tmp_path / "ш", ["h", "i"])
    path = path.rename(path.with_name(NAMES[0]))
    open_store(tmp_path / STORE).import_local("toy", path)
    with load("toy", store=tmp_path / STORE) as model:
        assert model.chat("?", temperature=0) == "hi"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    import huggingface_hub.file_download

    quick = SimpleNamespace(sleep=lambda seconds: None)  # the library waits between its attempts
    monkeypatch.setattr(huggingface_hub.file_download, "time", quick)
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def place(tmp_path: Path, server: FakeHub) -> Any:
    hub = HuggingFaceHub(endpoint=server.url, cache_dir=tmp_path / "cache")
    registry = ModelRegistry.open(tmp_path / "store")
    model = toy_gguf(tmp_path / "model.gguf").read_bytes()
    return SimpleNamespace(hub=hub, registry=registry, model=model, cache=tmp_path / "cache")


def fetch(place: Any) -> Any:
    return pull(place.registry, "hf:o/r/w.gguf", "toy", hub=place.hub)


def at_final_name(place: Any) -> list[Path]:
    snapshots = place.cache.rglob("snapshots/*/*")
    return [path for path in snapshots if path.exists()]


HTML = b"<!DOCTYPE html><html><body>Sign in to the network</body></html>"


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (HubEntry(HTML), errors.UnsupportedFormat),  # the hub itself declares the page
        (HubEntry(HTML, sha256="d" * 64), errors.EngineError),  # a page in the place of the declared file
        (HubEntry(b"GGUF" + bytes(496), size=1000), errors.HubError),  # Content-Length 1000, 500 sent
        (HubEntry(b""), errors.CorruptModelFile),
        (HubEntry(b"", sha256="d" * 64), errors.EngineError),
    ],
    ids=["page", "page-with-hash", "short", "empty", "empty-with-hash"],
)
def test_reg_3_something_else_than_the_model(
    place: Any, server: FakeHub, entry: HubEntry, error: Any
) -> None:
    server.files["o/r/w.gguf"] = entry
    with pytest.raises(error):
        fetch(place)
    assert place.registry.list() == []
    declared_truly = entry.sha256 == "" and entry.size is None
    assert at_final_name(place) == [] or declared_truly
    server.files["o/r/w.gguf"] = HubEntry(place.model)
    if (
        declared_truly
    ):  # the repository changed: another commit in the place of this one is not our cache's job
        place.hub.cache_dir = place.cache / "fresh"
    assert place.registry.verify(fetch(place).manifest.id).id == "toy"


def test_reg_3_wrong_hash(place: Any, server: FakeHub) -> None:
    server.files["o/r/w.gguf"] = HubEntry(place.model, sha256="d" * 64)
    with pytest.raises(errors.HubError, match="not the file that was asked for"):
        fetch(place)
    assert place.registry.list() == [] and at_final_name(place) == []
    with pytest.raises(errors.HubError, match="not what the hub declares"):
        place.hub.download("o/r", "w.gguf")
    assert at_final_name(place) == []
    server.files["o/r/w.gguf"] = HubEntry(place.model)
    assert fetch(place).manifest.id == "toy"


@pytest.mark.parametrize("which", ["head_failures", "get_failures"])
def test_reg_3_busy_then_fine(place: Any, server: FakeHub, which: str) -> None:
    server.files["o/r/w.gguf"] = HubEntry(place.model, **{which: 1})
    if which == "get_failures":
        with pytest.raises(errors.HubError, match="503"):
            fetch(place)
        assert place.registry.list() == [] and at_final_name(place) == []
    assert fetch(place).manifest.id == "toy"


def test_reg_3_a_broken_connection_resumes(place: Any, server: FakeHub) -> None:
    entry = server.files["o/r/w.gguf"] = HubEntry(place.model, cut_at=300, cuts=1)
    manifest = fetch(place).manifest
    assert place.registry.verify("toy") == manifest and entry.cuts == 0
    assert server.bodies() == 2


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/w.gguf", "file:///etc/passwd"])
def test_reg_3_redirect_to_another_scheme(place: Any, server: FakeHub, location: str) -> None:
    server.files["o/r/w.gguf"] = HubEntry(place.model, location=location)
    with pytest.raises(errors.HubError, match="address of another kind"):
        fetch(place)
    assert place.registry.list() == [] and at_final_name(place) == [] and server.bodies() == 0


def test_reg_3_killed_in_the_middle(place: Any, server: FakeHub, tmp_path: Path) -> None:
    entry = server.files["o/r/w.gguf"] = HubEntry(place.model, hold=threading.Event())
    code = (
        "import sys; from rase.registry import *; hub = HuggingFaceHub(sys.argv[2], sys.argv[3]);"
        "pull(ModelRegistry.open(sys.argv[1]), 'hf:o/r/w.gguf', 'toy', hub=hub)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store"), server.url, str(place.cache)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    assert entry.half_sent.wait(30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert place.registry.list() == [] and at_final_name(place) == []
    entry.hold.set()
    assert fetch(place).manifest.id == "toy"
