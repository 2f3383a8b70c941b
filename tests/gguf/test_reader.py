"""The reader takes every well-formed file and names what is wrong with every other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rase.errors import CorruptModelFile, EngineError, ModelFileNotFound, UnsupportedFormat
from rase.gguf.cursor import FIRST_PIECE, MAX_HEADER
from rase.gguf.reader import GgufFile
from rase.testing.blocks import random_blocks
from tests.support.gguf_build import ALL_FORMATS, TYPE_IDS, HandMade, write_gguf

NUMBERS = {
    "uint8": [0, 255], "int8": [-128, 127], "uint16": [0, 65535], "int16": [-32768, 5],
    "uint32": [0, 2**32 - 1],
    "int32": [-(2**31), 7], "float32": [1.5, -0.0], "bool": [True, False], "uint64": [0, 2**64 - 1],
    "int64": [-(2**63), 1], "float64": [0.1, float("inf")],
}  # fmt: skip


def refusal(tmp_path: Path, kind: type[EngineError], file: HandMade | bytes) -> EngineError:
    path = tmp_path / "bad.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.build())
    with pytest.raises(kind) as caught:
        GgufFile.open(path)
    assert "bad.gguf" in str(caught.value) and caught.value.data["path"] == str(path)
    return caught.value


def test_every_metadata_type_and_arrays_of_each(tmp_path: Path) -> None:
    pairs: list[tuple[str, str, Any]] = []
    for kind, values in NUMBERS.items():
        pairs += [(f"{kind}.{index}", kind, value) for index, value in enumerate(values)]
        pairs += [(f"{kind}.array", "array", (kind, values)), (f"{kind}.none", "array", (kind, []))]
    pairs += [
        ("s", "string", "a\0é"),
        ("t", "string", ""),
        ("u", "array", ("string", ["x", "", "語"])),
        ("", "uint8", 3),
    ]
    with GgufFile.open(HandMade(pairs).write(tmp_path / "m.gguf")) as file:
        for kind, values in NUMBERS.items():
            for index, value in enumerate(values):
                found = file.metadata[f"{kind}.{index}"]
                assert found == value and type(found) is type(value), kind
                assert file.types[f"{kind}.{index}"] == kind
            array = file.metadata[f"{kind}.array"]
            assert array.dtype == np.dtype(kind) and array.tolist() == values and not array.flags.writeable
            assert file.metadata[f"{kind}.none"].shape == (0,)
            assert file.types[f"{kind}.array"] == f"array of {kind}"
        assert [file.metadata[key] for key in ("s", "t", "u", "")] == ["a\0é", "", ["x", "", "語"], 3]


def test_files_of_the_package_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for fmt in ALL_FORMATS:
        for shape in ((256,), (5, 512), (2, 3, 256), (2, 1, 3, 256)):
            tensors[f"{fmt}.{len(shape)}"] = (random_blocks(fmt, shape, rng), shape, fmt)
    metadata = {
        "general.architecture": "llama",
        "number": 7,
        "words": ["a", "b"],
        "scores": np.arange(3.0, dtype="f4"),
    }
    with GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata, tensors)) as file:
        assert list(file.tensors) == list(tensors) and file.version == 3 and file.alignment == 32
        for name, (raw, shape, fmt) in tensors.items():
            info = file.tensors[name]
            assert (info.shape, info.format.name, info.nbytes) == (shape, fmt, len(raw))
            assert file.read(info) == raw
        assert file.metadata["scores"].tolist() == [0, 1, 2] and file.metadata["words"] == ["a", "b"]
        assert (
            file.shards[0].header
            == (tmp_path / "m.gguf").read_bytes()[: next(iter(file.tensors.values())).offset]
        )


@pytest.mark.real
@pytest.mark.parametrize(("model", "tokens"), [("smollm2", 49152), ("gemma", 262144)])
def test_real_files_parse_fast(model: str, tokens: int, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    best = 9.0
    for _ in range(3):
        start = time.perf_counter()
        with GgufFile.open(path) as file:
            best = min(best, time.perf_counter() - start)
            assert len(file.metadata["tokenizer.ggml.tokens"]) == tokens
            assert sum(info.nbytes for info in file.tensors.values()) <= file.shards[0].size
            assert len(file.shards[0].header) < 8 * 2**20, "the header alone is read"
    assert best < 1, f"opening took {best:.2f} s"  # 0.06 s and 0.10 s on an idle machine


def test_headers_across_the_borders_of_pieces(tmp_path: Path) -> None:
    """Strings of awkward lengths around every multiple of the first piece, and one longer than several."""
    rng = np.random.default_rng(5)
    words = ["é" * int(length) for length in rng.integers(0, 90, 20000)]
    words[7000:7000] = ["x" * (3 * FIRST_PIECE)]
    numbers = list(range(200000))
    pairs = [
        ("w", "array", ("string", words)),
        ("n", "array", ("int32", numbers)),
        ("s", "string", "y" * 700001),
    ]
    with GgufFile.open(HandMade(pairs).write(tmp_path / "m.gguf")) as file:
        assert file.metadata["w"] == words
        assert file.metadata["n"].tolist() == numbers and file.metadata["s"] == "y" * 700001


F32, NVFP4 = 0, 40
DATA = bytes(1024)


def one_tensor(**changes: Any) -> HandMade:
    entry = {"name": "t.weight", "dims": [8, 4], "kind": F32, "offset": 0} | changes
    return HandMade(tensors=[(entry["name"], entry["dims"], entry["kind"], entry["offset"])], data=DATA)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (one_tensor(dims=[]), "the rank of tensor 't.weight': expected 1 to 4 dimensions, found 0"),
        (one_tensor(dims=[1] * 5), "found 5"),
        (one_tensor(dims=[0, 4]), "tensor 't.weight' of shape (4, 0): a dimension of a tensor"),
        (one_tensor(dims=[8, 0]), "tensor 't.weight' of shape (0, 8): a dimension of a tensor"),
        (one_tensor(dims=[2**62, 4]), "tensor 't.weight' of shape"),
        (one_tensor(dims=[2**32, 2**32]), "tensor 't.weight' of shape"),
        (one_tensor(dims=[33, 4], kind=2), "expected a positive multiple of 32, found 33 weights"),
        (one_tensor(offset=4), "the offset of tensor 't.weight': expected a multiple of the alignment 32"),
        (one_tensor(offset=2**64 - 32), "it is cut: tensor 't.weight' misses bytes"),
        (one_tensor(offset=928), "it is cut: tensor 't.weight' misses bytes 1120 to 1152"),
        (
            HandMade(tensors=[("a", [8], F32, 0), ("a", [8], F32, 32)], data=DATA),
            "tensor 'a' comes twice",
        ),
        (
            HandMade(tensors=[("b", [8], F32, 32), ("a", [9], F32, 0)], data=DATA),
            "tensor 'b' overlaps tensor 'a': expected an offset from 36 up, found 32",
        ),
        (
            HandMade(tensors=[("b", [8], F32, 32), ("a", [8], F32, 32)], data=DATA),
            "overlaps tensor",
        ),
        (HandMade([("k", "uint8", 1), ("k", "uint8", 1)]), "metadata key 'k' comes twice"),
        (HandMade([("k", "bool", bytearray(b"\x02"))]), "'k': expected a boolean, 0 or 1, found 2"),
        (HandMade([("b", 9, bytearray(b"\7\0\0\0\1\0\0\0\0\0\0\0\5"))]), "booleans, 0 or 1, found 5"),
        (HandMade([("k", 13, bytearray(8))]), "the type of metadata key 'k': expected a type from 0"),
        (HandMade([("k", "array", (99, []))]), "the element type of metadata key 'k'"),
        (HandMade([("k", "string", b"ab\xff")]), "metadata key 'k' is not UTF-8: found b'ab\\xff' at byte 2"),
        (HandMade([(b"\xc3", "uint8", 1)]), "metadata key 0 is not UTF-8"),
        (HandMade([("k", "array", ("string", ["a", b"\xed\xa0\x80"]))]), "string 1 of metadata key 'k' is"),
        (one_tensor(name=b"\x80"), "the name of tensor 0 is not UTF-8"),
        (HandMade([("k", "string", "v")], n_pairs=2, alignment=0), "metadata keys: expected at most 1"),
        (HandMade(n_pairs=2**63), "the number of metadata keys: expected at most 0"),
        (HandMade(n_tensors=2**64 - 1, data=DATA), "the number of tensors: expected at most"),
    ],
    ids=lambda value: None if isinstance(value, HandMade) else value[:40],
)  # fmt: skip
def test_contradictions_are_named(tmp_path: Path, file: HandMade, words: str) -> None:
    assert words in str(refusal(tmp_path, CorruptModelFile, file))


@pytest.mark.parametrize("length", [6, 2**31, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize(
    "place", ["key", "string", "strings", "string in array", "uint8 array", "float64 array"]
)
def test_lengths_beyond_the_file_are_refused(tmp_path: Path, place: str, length: int) -> None:
    number = length.to_bytes(8, "little") + b"abcde"  # five bytes follow, never enough

    def array(kind: str, before: bytes = b"") -> HandMade:
        element = TYPE_IDS[kind].to_bytes(4, "little")
        return HandMade([("k", "array", bytearray(element + before + number))], alignment=0)

    file = {
        "key": lambda: HandMade(n_pairs=1, alignment=0, data=number),
        "string": lambda: HandMade([("k", "string", bytearray(number))], alignment=0),
        "strings": lambda: array("string"),
        "string in array": lambda: array("string", (1).to_bytes(8, "little")),
        "uint8 array": lambda: array("uint8"),
        "float64 array": lambda: array("float64"),
    }[place]()
    message = str(refusal(tmp_path, CorruptModelFile, file))
    assert ("metadata key 0" if place == "key" else "metadata key 'k'") in message


def test_a_sparse_giant_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A file of 64 GiB of zeros (a few blocks on disk) may declare what it likes: the header has a limit."""
    path = tmp_path / "giant.gguf"
    long, many = (2**35).to_bytes(8, "little"), bytearray(b"\x08\0\0\0" + (2**32).to_bytes(8, "little"))
    heads = {
        "one long string": HandMade([("k", "string", bytearray(long))]),
        "many strings": HandMade([("k", "array", many)]),
        "many keys": HandMade(n_pairs=2**31),
        "many tensors": HandMade(n_tensors=2**30),
        "wide alignment": HandMade([("general.alignment", "uint32", 2**31)], alignment=0),
    }
    for what, head in heads.items():
        head.write(path)
        os.truncate(path, 2**36)
        start = time.perf_counter()
        with pytest.raises(UnsupportedFormat):
            GgufFile.open(path)
        assert time.perf_counter() - start < 5, what
    assert MAX_HEADER <= 2**28


@pytest.mark.parametrize(
    ("kind", "name"), [(NVFP4, "NVFP4"), (24, "I8"), (41, "Q1_0"), (77, "number 77, which is unknown")]
)
def test_other_tensor_types_are_refused_by_name(tmp_path: Path, kind: int, name: str) -> None:
    error = refusal(tmp_path, UnsupportedFormat, one_tensor(dims=[32, 1], kind=kind))
    assert f"tensor 't.weight' has type {name}" in str(error) and "Q4_K" in str(error)
    assert error.data["tensor"] == "t.weight"


def test_arrays_of_arrays_are_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, UnsupportedFormat, HandMade([("k", "array", bytearray(b"\x09" + bytes(19)))]))
    assert "metadata key 'k' is an array of arrays" in str(error)


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", CorruptModelFile, "is empty"),
        (b"GG", CorruptModelFile, "it is cut: the magic misses bytes 2 to 4"),
        (b"GGUF\x03\0", CorruptModelFile, "it is cut: the version misses bytes 6 to 8"),
        (b"\n<!DOCTYPE html><html>", UnsupportedFormat, "an HTML page"),
        (b"<html>", UnsupportedFormat, "an HTML page"),
        (b"PK\x03\x04abc", UnsupportedFormat, "a ZIP archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", UnsupportedFormat, "a Git LFS pointer"),
        ((16).to_bytes(8, "little") + b'{"a":{}}        ', UnsupportedFormat, "a safetensors file"),
        (b"\x00\x01\x02", UnsupportedFormat, "found b'\\x00\\x01\\x02'"),
    ],
)
def test_other_files_are_called_by_their_name(
    tmp_path: Path, data: bytes, kind: type[EngineError], words: str
) -> None:
    assert words in str(refusal(tmp_path, kind, data))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    makers: list[Callable[[], Any]] = [
        lambda: tmp_path / "absent.gguf", lambda: tmp_path, lambda: tmp_path / "pipe", lambda: "a\0b",
        lambda: "/dev/null",
    ]  # fmt: skip
    for make in makers:
        with pytest.raises(ModelFileNotFound):
            GgufFile.open(make())


def test_nothing_stays_open_after_a_refusal(tmp_path: Path) -> None:
    path = one_tensor(offset=4).write(tmp_path / "bad.gguf")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(CorruptModelFile):
            GgufFile.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_cut_after_opening_is_a_typed_error(tmp_path: Path) -> None:
    path = one_tensor().write(tmp_path / "m.gguf")
    with GgufFile.open(path) as file:
        info = file.tensors["t.weight"]
        assert file.read(info) == DATA[:128]
        os.truncate(path, info.offset + 100)
        with pytest.raises(
            CorruptModelFile, match=r"it was cut while it was read: tensor 't.weight' misses bytes"
        ) as caught:
            file.read(info)
    assert caught.value.data["missing"] == (info.offset + 100, info.offset + 128)
    file.close()
