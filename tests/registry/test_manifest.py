"""The manifest: byte-stable TOML, and a typed error for whatever is not one."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.errors import InvalidModelId, ManifestError
from rase.registry import ManifestFile, ModelFormat, ModelKind, ModelManifest
from rase.registry.manifest import check_id, list_digest

A, B = "a" * 64, "b" * 64
FULL = ModelManifest(
    id="qwen3-4b", kind=ModelKind.GENERATOR, format=ModelFormat.GGUF, weights="/models/w.gguf", sha256=A,
    tokenizer="/models/tokenizer.json", tokenizer_sha256=B, architecture="qwen3", context_length=262144,
    chat_template="chatml",
)  # fmt: skip
TEXT = f"""id = "qwen3-4b"
kind = "generator"
format = "gguf"
weights = "/models/w.gguf"
sha256 = "{A}"
tokenizer = "/models/tokenizer.json"
tokenizer_sha256 = "{B}"
architecture = "qwen3"
context_length = 262144
chat_template = "chatml"
"""


def test_the_text_is_fixed_and_reads_back() -> None:
    assert FULL.to_toml() == TEXT
    assert ModelManifest.from_toml(TEXT) == FULL
    small = ModelManifest("m", ModelKind.EMBEDDING, ModelFormat.SAFETENSORS, "/w", A)
    assert (
        small.to_toml()
        == f'id = "m"\nkind = "embedding"\nformat = "safetensors"\nweights = "/w"\nsha256 = "{A}"\n'
    )
    assert small.weight_files == (ManifestFile("/w", None, A),)


def test_text_becomes_enums() -> None:
    manifest = ModelManifest("m", "generator", "gguf", "/w", A)  # type: ignore[arg-type]
    assert manifest.kind is ModelKind.GENERATOR and manifest.format is ModelFormat.GGUF


def test_the_hash_of_a_list_is_what_sha256sum_prints(tmp_path: Path) -> None:
    paths = [tmp_path / "a-00001-of-00002.gguf", tmp_path / "a-00002-of-00002.gguf"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 10)
    files = tuple(ManifestFile(str(p), 10, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths)
    command = ["sha256sum", *(path.name for path in paths)]
    listing = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    digest = list_digest(files, str(tmp_path))
    assert digest == hashlib.sha256(listing).hexdigest()
    manifest = replace(FULL, weights=str(paths[0]), sha256=digest, files=files)
    assert manifest.folder == str(tmp_path) and manifest.weight_files == files
    text = manifest.to_toml()
    assert text.count("[[files]]") == 2
    assert ModelManifest.from_toml(text) == manifest
    with pytest.raises(ManifestError, match="which covers 'files'"):
        replace(manifest, sha256=A)
    with pytest.raises(ManifestError, match="the first of 'files'"):
        replace(manifest, weights=str(paths[1]))


def test_a_folder_of_files() -> None:
    files = (ManifestFile("/m/model/a.safetensors", 1, A), ManifestFile("/m/model/config.json", 2, B))
    digest = list_digest(files, "/m/model")
    manifest = ModelManifest("m", "generator", "safetensors", "/m/model", digest, files=files)  # type: ignore[arg-type]
    assert manifest.folder == "/m/model"
    with pytest.raises(ManifestError, match="files inside"):
        replace(manifest, files=(*files, ManifestFile("/m/elsewhere", 1, A)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('id = "../x"', "not a model id"),
        ('kind = "chat"', "generator or embedding"),
        ('format = "onnx"', "gguf or safetensors"),
        ('weights = "relative.gguf"', "absolute path"),
        ('sha256 = "ABC"', "64 lower-case"),
        ("sha256 = 1", "text"),
        ("context_length = 0", "whole number"),
        ("context_length = true", "whole number"),
        ("context_length = 1e3", "whole number"),
        ('chat_template = ""', "not empty"),
        ('colour = "red"', "does not know"),
        ("files = 3", "list of tables"),
        ('files = [{path = "/w"}]', "path, size and sha256"),
        (f'files = [{{path = "/w", size = -1, sha256 = "{A}"}}]', "number of bytes"),
    ],
)
def test_a_wrong_value_names_its_key(line: str, message: str) -> None:
    key = line.split(" = ")[0]
    text = "\n".join([line, *(x for x in TEXT.splitlines() if not x.startswith(f"{key} ="))])
    with pytest.raises(ManifestError, match=message) as caught:
        ModelManifest.from_toml(text)
    assert caught.value.hint
    if key != "id":
        assert f"'{key}" in str(caught.value)


@pytest.mark.parametrize(
    "key", ["id", "kind", "format", "weights", "sha256", "tokenizer", "tokenizer_sha256"]
)
def test_an_absent_key(key: str) -> None:
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith(f"{key} ="))
    with pytest.raises(ManifestError):
        ModelManifest.from_toml(text)


def test_a_number_of_thousands_of_digits_is_refused_like_any_other_bad_text() -> None:
    """The TOML parser has no type of its own for numbers that int() refuses to read."""
    with pytest.raises(ManifestError, match="is not TOML"):
        ModelManifest.from_toml(TEXT + "context_length = " + "9" * 5000)


@given(st.data())
def test_a_damaged_manifest_is_an_error_or_a_manifest(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT)))
    cut = data.draw(st.integers(0, 20))
    insert = data.draw(
        st.text(max_size=5) | st.sampled_from(["[[files]]\n", "=", '"', "'''", "\0", "[" * 2000])
    )
    try:
        manifest = ModelManifest.from_toml(TEXT[:at] + insert + TEXT[at + cut :])
    except ManifestError:
        return
    assert ModelManifest.from_toml(manifest.to_toml()) == manifest


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_every_path_reads_back(name: str) -> None:
    manifest = replace(FULL, weights="/" + name, chat_template=name, architecture=name)
    assert ModelManifest.from_toml(manifest.to_toml()) == manifest


@pytest.mark.parametrize("id", ["a", "A.b_c-d", "0", "x" * 128, "a..b", "con"])
def test_good_ids(id: str) -> None:
    assert check_id(id) == id


@pytest.mark.parametrize(
    "id",
    [
        "",
        ".",
        "..",
        ".a",
        "-a",
        "_a",
        "a/b",
        "a\\b",
        "../a",
        "/a",
        "a\n",
        "a\0",
        "ä",
        "a b",
        "x" * 129,
        "%2e",
        None,
        7,
    ],
)
def test_bad_ids(id: object) -> None:
    with pytest.raises(InvalidModelId):
        check_id(id)  # type: ignore[arg-type]
