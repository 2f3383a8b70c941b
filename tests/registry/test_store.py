"""ModelRegistry: what an import records, what is refused, and that files are checked when asked."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rase import errors
from rase.registry import ModelKind, ModelManifest, ModelRegistry
from rase.registry.files import hash_file
from rase.registry.locks import file_lock
from tests.support.stores import toy_gguf, toy_safetensors, toy_shards, toy_tokenizer


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry.open(tmp_path / "store", lock_timeout=0.2)


def test_import_records_what_the_file_says(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    seen: list[tuple[int, int]] = []
    result = registry.import_local("toy", path, progress=lambda done, total: seen.append((done, total)))
    manifest = result.manifest
    assert manifest == registry.get("toy")
    assert manifest.weights == str(path) and manifest.sha256 == hash_file(path)[0]
    assert (manifest.architecture, manifest.context_length, manifest.chat_template) == ("llama", 64, None)
    assert result.replaced is None and result.size == path.stat().st_size
    assert result.manifest_path.read_text() == manifest.to_toml()
    assert seen[-1] == (result.size, result.size)
    again = registry.import_local("toy", path, architecture="llama3", context_length=32)
    assert again.replaced == manifest
    assert (again.manifest.architecture, again.manifest.context_length) == ("llama3", 32)


def test_relative_and_home_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    toy_gguf(tmp_path / "w.gguf")
    registry = ModelRegistry.open("~/store")
    assert registry.root == tmp_path / "store"
    assert registry.import_local("a", "w.gguf").manifest.weights == str(tmp_path / "w.gguf")
    assert registry.import_local("b", "~/w.gguf").manifest.weights == str(tmp_path / "w.gguf")


def test_the_check_of_the_layer_above_can_refuse(tmp_path: Path) -> None:
    class Checked(ModelRegistry):
        def check(self, file: Any, architecture: str | None, context_length: int | None, kind: Any) -> None:
            raise errors.UnsupportedArchitecture(
                f"{file.metadata['general.architecture']} {architecture} {context_length} {kind}"
            )

    registry = Checked.open(tmp_path / "store")
    path = toy_gguf(tmp_path / "w.gguf")
    with pytest.raises(errors.UnsupportedArchitecture, match="llama phi 16 embedding"):
        registry.import_local("toy", path, architecture="phi", context_length=16, kind="embedding")
    assert registry.list() == []


def test_split_files_from_any_shard(registry: ModelRegistry, tmp_path: Path) -> None:
    first, second = toy_shards(tmp_path / "split")
    manifest = registry.import_local("split", second).manifest
    assert manifest.weights == str(first)
    assert [file.path for file in manifest.files] == [str(first), str(second)]
    assert [file.sha256 for file in manifest.files] == [hash_file(first)[0], hash_file(second)[0]]
    assert registry.verify("split") == manifest
    second.write_bytes(second.read_bytes()[:-1] + b"!")
    with pytest.raises(errors.IntegrityMismatch) as caught:
        registry.verify("split")
    assert caught.value.path == str(second)
    second.unlink()
    with pytest.raises(errors.ModelFileNotFound, match="split"):
        registry.verify("split")


def test_safetensors_are_registered_and_verified(registry: ModelRegistry, tmp_path: Path) -> None:
    single = registry.import_local("single", toy_safetensors(tmp_path / "m.safetensors")).manifest
    assert single.format == "safetensors" and single.files == ()
    toy_safetensors(tmp_path / "model" / "a.safetensors", 1)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "notes.txt").write_text("not a part of the model")
    folder = registry.import_local("folder", tmp_path / "model", architecture="bert").manifest
    assert folder.weights == str(tmp_path / "model") and folder.architecture == "bert"
    assert [Path(file.path).name for file in folder.files] == ["a.safetensors", "config.json"]
    assert registry.verify("single") == single and registry.verify("folder") == folder
    (tmp_path / "model" / "config.json").write_text("[]")
    with pytest.raises(errors.IntegrityMismatch):
        registry.verify("folder")


@pytest.mark.parametrize(
    ("content", "name", "error", "says"),
    [
        (b"", "w.gguf", errors.CorruptModelFile, "empty"),
        (b"<!DOCTYPE html><html>", "w.gguf", errors.UnsupportedFormat, "a web page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "w.gguf",
            errors.UnsupportedFormat,
            "Git LFS pointer",
        ),
        (b"PK\x03\x04rest", "w.bin", errors.UnsupportedFormat, "ZIP archive"),
        (b"tjgg....", "w.bin", errors.UnsupportedFormat, "GGML"),
        (b"GGUF\x03", "w.gguf", errors.CorruptModelFile, "GGUF|w.gguf"),
        (b"\x08\0\0\0\0\0\0\0{}", "m.safetensors", errors.CorruptModelFile, "header of 8 bytes"),
        (b"\x02\0\0\0\0\0\0\0[]", "m.safetensors", errors.CorruptModelFile, "not an object"),
        (b"\x02\0\0\0\0\0\0\0{}extra", "m.safetensors", errors.CorruptModelFile, "bytes to spare"),
    ],
)
def test_files_that_are_no_models(
    registry: ModelRegistry, tmp_path: Path, content: bytes, name: str, error: type[Exception], says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=says):
        registry.import_local("toy", tmp_path / name)
    assert registry.list() == [] and os.listdir(registry.root / "manifests") == []


def test_things_that_are_no_files(registry: ModelRegistry, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "folder").mkdir()
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        started = time.monotonic()
        for name in ("pipe.gguf", "folder", "loop", "absent", "socket", "x" * 300):
            with pytest.raises((errors.ModelFileNotFound, errors.StoreError)):
                registry.import_local("toy", tmp_path / name)
        with pytest.raises(errors.ModelFileNotFound, match="regular file"):
            registry.import_local("toy", "/dev/zero")
        assert time.monotonic() - started < 1


def test_a_folder_of_gguf_files_names_the_file(registry: ModelRegistry, tmp_path: Path) -> None:
    toy_gguf(tmp_path / "folder" / "w.gguf")
    with pytest.raises(errors.ModelFileNotFound, match=r"folder/w\.gguf"):
        registry.import_local("toy", tmp_path / "folder")


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "chat"}, {"context_length": 0}, {"context_length": True}, {"context_length": 2**31},
        {"architecture": ""}, {"chat_template": 3}, {"id": "../x"},
    ],
)  # fmt: skip
def test_options_that_no_manifest_can_hold(
    registry: ModelRegistry, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(errors.InvalidRequest):
        registry.import_local(**{"id": "toy", "weights": toy_gguf(tmp_path / "w.gguf"), **options})
    assert registry.list() == []


def test_arguments_that_contradict_the_file(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    with pytest.raises(errors.ManifestError, match="at most 64"):
        registry.import_local("toy", path, context_length=65)
    with pytest.raises(errors.ManifestError, match="template of its own"):
        registry.import_local("toy", path, chat_template="gguf")
    own = toy_gguf(tmp_path / "own.gguf", **{"tokenizer.chat_template": "{{ messages }}"})
    assert registry.import_local("toy", own, chat_template="gguf").manifest.chat_template == "gguf"
    assert registry.import_local("toy", path, chat_template="chatml").manifest.chat_template == "chatml"
    with pytest.raises(errors.InvalidRequest, match="chatml"):
        registry.import_local("toy", path, chat_template="chatmll")


def test_attach_tokenizer(registry: ModelRegistry, tmp_path: Path) -> None:
    before = registry.import_local("toy", toy_gguf(tmp_path / "w.gguf")).manifest
    path = toy_tokenizer(tmp_path / "tokenizer.json")
    manifest = registry.attach_tokenizer("toy", path)
    assert manifest == registry.get("toy") != before
    assert manifest.tokenizer == str(path) and manifest.tokenizer_sha256 == hash_file(path)[0]
    assert manifest.sha256 == before.sha256
    path.write_text(path.read_text() + " ")
    with pytest.raises(errors.IntegrityMismatch) as caught:
        registry.verify("toy")
    assert caught.value.path == str(path)
    for content in (b"", b"{}", b"<html>", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(errors.TokenizerError):
            registry.attach_tokenizer("toy", path)
    assert registry.get("toy") == manifest
    small = toy_gguf(tmp_path / "small.gguf", **{"tokenizer.ggml.tokens": ["a", "b"]})
    registry.import_local("small", small)
    with pytest.raises(errors.TokenizerError, match="more tokens than the model"):
        registry.attach_tokenizer("small", toy_tokenizer(path))
    with pytest.raises(errors.ModelNotFound):
        registry.attach_tokenizer("absent", path)


def test_import_with_a_bad_tokenizer_registers_nothing(registry: ModelRegistry, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(errors.TokenizerError):
        registry.import_local("toy", toy_gguf(tmp_path / "w.gguf"), tokenizer=tmp_path / "t.json")
    assert registry.list() == []


def test_get_suggests_a_near_id(registry: ModelRegistry, tmp_path: Path) -> None:
    registry.import_local("smollm2", toy_gguf(tmp_path / "w.gguf"))
    with pytest.raises(errors.ModelNotFound, match="Did you mean 'smollm2'"):
        registry.get("smolm2")
    for id in ("../manifests/smollm2", "smollm2/", "/etc/passwd", ""):
        with pytest.raises(errors.InvalidModelId):
            registry.get(id)


def test_a_broken_manifest_hides_no_other(
    registry: ModelRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    for id in ("b", "a", "c"):
        registry.import_local(id, path)
    manifests = registry.root / "manifests"
    (manifests / "a.toml").write_text("id = ")
    (manifests / "d.toml").write_bytes(b"\xff\xfe")
    shutil.copy(manifests / "b.toml", manifests / "e.toml")
    (manifests / "f.toml").write_bytes(b"#" * (1 << 21))
    (manifests / "g.toml").mkdir()
    os.symlink("/dev/zero", manifests / "h.toml")
    (manifests / "README").write_text("not a manifest")
    with caplog.at_level(logging.WARNING):
        assert [manifest.id for manifest in registry.list()] == ["b", "c"]
    for id in "adefgh":
        assert f"model '{id}' is left out" in caplog.text
        with pytest.raises((errors.ManifestError, errors.StoreError)):
            registry.get(id)
    assert registry.remove("a").manifest is None
    registry.import_local("d", path)
    assert registry.verify("d").id == "d"


def test_a_file_whose_name_is_no_id_hides_no_model(registry: ModelRegistry, tmp_path: Path) -> None:
    registry.import_local("good", toy_gguf(tmp_path / "w.gguf"))
    manifests = registry.root / "manifests"
    for name in ("My Model", "ü", "\x1b[31m", "-x", "a\nb", "a" * 200, os.fsdecode(b"\xff")):
        shutil.copy(manifests / "good.toml", manifests / f"{name}.toml")
    assert [manifest.id for manifest in registry.list()] == ["good"] == [*registry.ids()]
    broken = registry.scan()[1]
    assert {"My Model", "\\xfc", "\\x1b[31m", "-x", "a\\nb", "a" * 200, "\\udcff"} == broken.keys()
    assert all("is not a model id" in str(error) and error.hint for error in broken.values())
    with pytest.raises(errors.ModelNotFound, match="Did you mean 'good'"):
        registry.get("goood")


def test_remove_says_what_it_frees_and_keeps(registry: ModelRegistry, tmp_path: Path) -> None:
    path, tokenizer = toy_gguf(tmp_path / "w.gguf"), toy_tokenizer(tmp_path / "tokenizer.json")
    registry.import_local("toy", path, tokenizer=tokenizer)
    removed = registry.remove("toy")
    assert removed.freed_bytes == 0 and removed.kept == (str(path), str(tokenizer))
    assert path.exists() and tokenizer.exists()
    with pytest.raises(errors.ModelNotFound):
        registry.remove("toy")


def test_owned_weights_live_and_go_with_the_model(registry: ModelRegistry, tmp_path: Path) -> None:
    def own(number: int) -> ModelManifest:
        with registry.workspace() as folder:
            toy_gguf(folder / "w.gguf", number)
            return registry.import_local("toy", folder / "w.gguf", take=True).manifest

    first = own(0)
    assert Path(first.weights).is_relative_to(registry.root / "weights" / "toy")
    second = own(1)
    assert not Path(first.weights).exists() and registry.verify("toy") == second
    assert own(1) == second and registry.verify("toy") == second
    assert list((registry.root / "incoming").iterdir()) == []
    size = Path(second.weights).stat().st_size
    removed = registry.remove("toy")
    assert removed.freed_bytes == size and removed.kept == ()
    assert not (registry.root / "weights" / "toy").exists()


def test_importing_an_own_file_does_not_lose_it(registry: ModelRegistry, tmp_path: Path) -> None:
    with registry.workspace() as folder:
        toy_gguf(folder / "w.gguf")
        manifest = registry.import_local("toy", folder / "w.gguf", take=True).manifest
    again = registry.import_local("toy", manifest.weights, context_length=8).manifest
    assert again.weights == manifest.weights and registry.verify("toy") == again


def test_a_workspace_in_use_is_not_a_leftover(registry: ModelRegistry) -> None:
    with registry.workspace() as folder:
        (folder / "part").write_text("half")
        dead = registry.root / "incoming" / "0123456789abcdef"
        dead.mkdir()
        ModelRegistry.open(registry.root)
        assert (folder / "part").read_text() == "half" and not dead.exists()
    assert not folder.exists()


def test_the_lock_times_out(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    registry.import_local("toy", path)
    done = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with file_lock(registry.root / ".lock", 1):
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        for change in (lambda: registry.import_local("b", path), lambda: registry.remove("toy")):
            with pytest.raises(errors.StoreLocked, match="Try again"):
                change()
        assert registry.get("toy").id == "toy"  # reading waits for nobody
        ModelRegistry.open(registry.root)
    finally:
        done.set()
        thread.join()
    registry.import_local("b", path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_store_reads(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    registry.import_local("toy", path)
    folders = [registry.root, registry.root / "manifests"]
    for folder in folders:
        folder.chmod(0o555)
    (registry.root / ".lock").chmod(0o444)
    try:
        again = ModelRegistry.open(registry.root)
        assert again.verify("toy").id == "toy" and len(again.list()) == 1
        with pytest.raises(errors.StoreError, match="access rights"):
            again.import_local("b", path)
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("place", ["a file", "a dangling link"])
def test_a_store_that_cannot_be(tmp_path: Path, place: str) -> None:
    root = tmp_path / "store"
    if place == "a file":
        root.write_text("")
    else:
        os.symlink(tmp_path / "nowhere" / "else", root)
    with pytest.raises(errors.StoreError):
        ModelRegistry.open(root)


def test_the_file_must_stay_the_same_while_it_is_read(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")

    def grow(done: int, total: int) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    with pytest.raises(errors.CorruptModelFile):
        registry.import_local("toy", path, progress=grow)
    assert registry.list() == []


def test_cancel_and_interrupt_register_nothing(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    with pytest.raises(errors.Cancelled):
        registry.import_local("toy", path, cancelled=lambda: True)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        registry.import_local("toy", path, progress=interrupt)
    assert registry.list() == []
    registry.import_local("toy", path)
    with pytest.raises(errors.Cancelled):
        registry.verify("toy", cancelled=lambda: True)


def test_expected_hashes(registry: ModelRegistry, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "w.gguf")
    with pytest.raises(errors.SourceError, match="nothing was registered"):
        registry.import_local("toy", path, expected=["0" * 64])
    assert registry.list() == []
    assert registry.import_local("toy", path, ModelKind.GENERATOR, expected=[hash_file(path)[0]])
