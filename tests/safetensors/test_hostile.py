"""Folders that contradict themselves, and bytes that are no folder: typed errors, never a crash or a hang."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rase.errors import CorruptModelFile, EngineError, ModelFileNotFound, UnsupportedFormat
from rase.gguf.files import InputFile
from rase.gguf.stream import HashedTensors
from rase.models.files import open_model
from rase.safetensors.folder import SafetensorsFolder
from rase.safetensors.header import MAX_HEADER, read_header
from rase.testing.tiny import ZOO
from tests.support import hf_folder

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def raw(header: Any, data: int, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


# what is wrong -> (bytes of the file, error, words in it)
HEADERS: dict[str, tuple[bytes, type[EngineError], str]] = {
    "empty": (b"", CorruptModelFile, "header of 0 bytes"),
    "seven bytes": (b"\2\0\0\0\0\0\0", CorruptModelFile, "header of 0 bytes"),
    "header beyond the file": (raw({}, 0, 10**6), CorruptModelFile, "header of 1000000"),
    "huge header": (raw({}, 0, 2**63), CorruptModelFile, "not a safetensors file"),
    "not JSON": (raw(b"{nonsense", 0), CorruptModelFile, "expected JSON"),
    "not an object": (raw([1], 0), CorruptModelFile, "not an object"),
    "not UTF-8": (raw(b'{"\xff": 1}', 0), CorruptModelFile, "not UTF-8"),
    "nested without end": (raw(b"[" * 100_000, 0), CorruptModelFile, "expected JSON"),
    "a number of many digits": (raw(b'{"a": ' + b"9" * 9999 + b"}", 0), CorruptModelFile, "expected JSON"),
    "a name twice": (raw(b'{"w": 1, "w": 2}', 0), CorruptModelFile, "'w' comes twice"),
    "no object for a tensor": (raw({"w": 5}, 0), CorruptModelFile, "expected an object"),
    "no dtype": (raw({"w": {"shape": [2], "data_offsets": [0, 8]}}, 8), UnsupportedFormat, "dtype None"),
    "unknown dtype": (raw({"w": F32 | {"dtype": "F4"}}, 8), UnsupportedFormat, "dtype 'F4'"),
    "negative length": (raw({"w": F32 | {"shape": [-2]}}, 8), CorruptModelFile, "shape"),
    "a truth as a length": (raw({"w": F32 | {"shape": [True, 2]}}, 8), CorruptModelFile, "shape"),
    "a product beyond 2^63": (raw({"w": F32 | {"shape": [2**40, 2**40]}}, 8), CorruptModelFile, "shape"),
    "rank 9": (raw({"w": F32 | {"shape": [1] * 9}}, 8), CorruptModelFile, "shape"),
    "descending offsets": (raw({"w": F32 | {"data_offsets": [8, 0]}}, 8), CorruptModelFile, "offsets"),
    "offsets beyond the file": (
        raw({"w": F32 | {"data_offsets": [0, 10**9]}}, 8),
        CorruptModelFile,
        "offsets",
    ),
    "fractional offsets": (raw({"w": F32 | {"data_offsets": [0, 8.0]}}, 8), CorruptModelFile, "offsets"),
    "another size than the shape": (raw({"w": F32 | {"shape": [3]}}, 8), CorruptModelFile, "12 bytes"),
    "overlap": (raw({"a": F32, "b": F32}, 8), CorruptModelFile, "overlaps"),
    "a gap": (raw({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, 20), CorruptModelFile, "follows a gap"),
    "cut": (raw({"w": F32}, 7), CorruptModelFile, "offsets|cut"),
    "bytes to spare": (raw({"w": F32}, 9), CorruptModelFile, "bytes to spare"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_bad_header(tmp_path: Path, case: str) -> None:
    data, error, says = HEADERS[case]
    (tmp_path / "m.safetensors").write_bytes(data)
    file = InputFile(tmp_path / "m.safetensors")
    with pytest.raises(error, match=says):
        read_header(file)
    file.close()


def test_a_header_at_its_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER + 1))
    os.truncate(path, MAX_HEADER + 100)  # sparse
    file = InputFile(path)
    with pytest.raises(CorruptModelFile, match=str(MAX_HEADER + 1)):
        read_header(file)
    file.close()


def test_scalars_and_empty_tensors_are_read(tmp_path: Path) -> None:
    header = {"a": F32, "none": {"dtype": "I64", "shape": [0, 4], "data_offsets": [8, 8]},
              "b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}}  # fmt: skip
    (tmp_path / "m.safetensors").write_bytes(raw(header, 10))
    file = InputFile(tmp_path / "m.safetensors")
    assert {info.name: info.shape for info in read_header(file).tensors} == {
        "a": (2,),
        "none": (0, 4),
        "b": (),
    }
    file.close()


Spoil = Callable[[Path], object]


def _edit(name: str, **changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        table = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(table | changes))

    return spoil


def _map(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        table = json.loads(path.read_text())
        change(table["weight_map"])
        path.write_text(json.dumps(table))

    return spoil


def _put(tensor: str, file: Any) -> Spoil:
    return _map(lambda owners: owners.update({tensor: file}))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SPOILT: dict[str, tuple[Spoil, type[EngineError], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ModelFileNotFound, "config.json"),
    "a config that is a list": (lambda f: (f / "config.json").write_text("[]"), CorruptModelFile, "an obj"),
    "a config that is a pipe": (lambda f: ((f / "config.json").unlink(), os.mkfifo(f / "config.json")),
                                ModelFileNotFound, "regular file"),
    "a missing shard": (lambda f: (f / SECOND).unlink(), ModelFileNotFound, SECOND),
    "an index without a map": (_edit("model.safetensors.index.json", weight_map=None),
                               CorruptModelFile, "weight_map"),
    "a way out": (_put("x", "../other/model.safetensors"), CorruptModelFile, "none of this"),
    "an absolute way out": (_put("x", "/etc/x.safetensors"), CorruptModelFile, "none of"),
    "no weights file": (_put("x", "config.json"), CorruptModelFile, "none of this folder"),
    "a hidden file": (_put("x", ".x.safetensors"), CorruptModelFile, "none of this"),
    "a NUL": (_put("x", "a\0.safetensors"), CorruptModelFile, "none of this folder"),
    "no text": (_put("x", 5), CorruptModelFile, "none of this folder"),
    "a tensor that no file holds": (_put("x", SECOND), CorruptModelFile, "'x' is not in"),
    "a tensor that the index forgets": (_map(lambda m: m.pop("lm_head.weight")), CorruptModelFile, "lm_head"),
    "a tensor elsewhere": (_put("lm_head.weight", FIRST), CorruptModelFile, "lm_head"),
    "a tensor in both files": (
        lambda f: hf_folder.write_safetensors(f / SECOND, {
            **hf_folder.state(ZOO["qwen3"]), "x": ("F32", np.zeros(1, np.float32))}),
        CorruptModelFile, "earlier file|does not say"),
    "a cut shard": (lambda f: os.truncate(f / SECOND, os.stat(f / SECOND).st_size - 1),
                    CorruptModelFile, "cut|off"),
    "files without an index": (lambda f: (f / "model.safetensors.index.json").unlink(),
                               CorruptModelFile, "no index"),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILT)
def test_a_folder_that_contradicts_itself(tmp_path: Path, case: str) -> None:
    spoil, error, says = SPOILT[case]
    folder = hf_folder.write_tiny(tmp_path / "m", "qwen3", ZOO["qwen3"], shards=2)
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert names["lm_head.weight"] == SECOND
    open_model(folder).close()
    spoil(folder)
    with pytest.raises(error, match=says):
        open_model(folder)


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(UnsupportedFormat, match="no safetensors files"):
        SafetensorsFolder.open(tmp_path)


def test_what_shrinks_or_changes_while_it_is_read(tmp_path: Path) -> None:
    folder = hf_folder.write_tiny(tmp_path / "m", "qwen3", ZOO["qwen3"])
    with SafetensorsFolder.open(folder) as file:
        os.truncate(folder / "model.safetensors", 4000)
        with pytest.raises(CorruptModelFile, match="was cut"):
            HashedTensors(file).deliver({}, lambda *_: None)
    folder = hf_folder.write_tiny(tmp_path / "n", "qwen3", ZOO["qwen3"])
    with SafetensorsFolder.open(folder) as file:
        os.utime(folder / "config.json", (1, 1))
        with pytest.raises(CorruptModelFile, match="changed"):
            HashedTensors(file).deliver({}, lambda *_: None)


def test_every_descriptor_is_closed(tmp_path: Path) -> None:
    folder = hf_folder.write_tiny(tmp_path / "m", "qwen3", ZOO["qwen3"], shards=2)
    before = len(os.listdir("/proc/self/fd"))
    SafetensorsFolder.open(folder).close()
    (folder / SECOND).write_bytes(b"")
    with pytest.raises(CorruptModelFile):
        SafetensorsFolder.open(folder)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    tensors = {"a": ("F32", np.arange(6, dtype=np.float32)), "b": ("BF16", np.arange(4, dtype=np.uint16))}
    return hf_folder.write_safetensors(folder / "m.safetensors", tensors)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_is_a_typed_error_or_harmless(sound: Path, data: st.DataObject) -> None:
    good = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    bad = sound.with_name("bad.safetensors")
    bad.write_bytes(bytes(good[: cut if data.draw(st.booleans()) else len(good)]))
    file = InputFile(bad)
    try:
        for info in read_header(file).tensors:
            assert info.offset + info.nbytes <= file.size
    except (CorruptModelFile, UnsupportedFormat):
        pass
    finally:
        file.close()
