"""A split model loads from any of its files; a part of one never passes for the whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rase.errors import CorruptModelFile, ModelFileNotFound
from rase.gguf.reader import GgufFile
from tests.support.gguf_build import HandMade, write_split_gguf

TENSORS = {f"t{index}.weight": np.full((4, 8), index, dtype=np.float32) for index in range(5)}
METADATA = {"general.architecture": "llama", "llama.block_count": 5, "words": ["a", "b"]}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three files as the gguf package splits them, of two, two and one tensors."""
    paths = write_split_gguf(tmp_path, "m", METADATA, TENSORS, tensors_per_shard=2)
    assert [path.name for path in paths] == [f"m-0000{index}-of-00003.gguf" for index in (1, 2, 3)]
    return paths


def contents(file: GgufFile) -> dict[str, list[float]]:
    return {name: np.frombuffer(file.read(info), dtype="<f4").tolist() for name, info in file.tensors.items()}


def test_any_shard_opens_the_whole(shards: list[Path]) -> None:
    for given in shards:
        with GgufFile.open(given) as file:
            assert contents(file) == {name: tensor.reshape(-1).tolist() for name, tensor in TENSORS.items()}
            assert [info.shard for info in file.tensors.values()] == [0, 0, 1, 1, 2]
            assert [shard.path for shard in file.shards] == shards
            assert file.metadata["llama.block_count"] == 5 and file.metadata["words"] == ["a", "b"]


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_missing_shard_is_named_whichever_is_given(shards: list[Path], absent: int) -> None:
    shards[absent].unlink()
    for given in shards:
        if given.exists():
            with pytest.raises(
                ModelFileNotFound, match=f"'m-0000{absent + 1}-of-00003.gguf' is not in"
            ) as caught:
                GgufFile.open(given)
            assert caught.value.data["missing"] == [str(shards[absent])]


def test_a_shard_under_another_name_is_refused(shards: list[Path], tmp_path: Path) -> None:
    plain = shutil.copy(shards[0], tmp_path / "plain.gguf")
    with pytest.raises(CorruptModelFile, match=r"one of 3 shards.*plain-00001-of-00003.gguf"):
        GgufFile.open(plain)
    shutil.copy(shards[0], shards[1])
    for given in shards:
        with pytest.raises(
            CorruptModelFile, match=r"m-00002-of-00003.gguf': its name and its metadata disagree"
        ):
            GgufFile.open(given)


def test_shards_of_another_model_are_refused(shards: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tensors = {name.replace("t4", "t0"): tensor for name, tensor in TENSORS.items() if name != "t0.weight"}
    theirs = write_split_gguf(
        other, "m", METADATA, {"t9.weight": TENSORS["t0.weight"]} | tensors, tensors_per_shard=2
    )
    shutil.copy(theirs[2], shards[2])
    with pytest.raises(CorruptModelFile, match=r"tensor 't0.weight' is in an earlier shard, too"):
        GgufFile.open(shards[0])


def shard_file(number: int, count: int, extra: list[tuple[str, str, Any]], name: str) -> HandMade:
    pairs = [("split.no", "uint16", number), ("split.count", "uint16", count), *extra]
    return HandMade(pairs, [(name, [8], 0, 0)], bytes(32))


def test_metadata_may_repeat_but_not_contradict(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    second = tmp_path / "m-00002-of-00002.gguf"
    array = ("array", ("float32", [1.0, 2.0]))
    shard_file(0, 2, [("a", "uint32", 1), ("b", *array)], "x").write(first)
    shard_file(1, 2, [("a", "uint32", 1), ("b", *array), ("c", "string", "new")], "y").write(second)
    with GgufFile.open(second) as file:
        assert file.metadata["a"] == 1 and file.metadata["c"] == "new" and list(file.tensors) == ["x", "y"]
    for pair in (("a", "uint32", 2), ("b", "array", ("float32", [1.0, 3.0])), ("a", "string", "1")):
        shard_file(1, 2, [pair], "y").write(second)
        with pytest.raises(
            CorruptModelFile, match=f"metadata key '{pair[0]}' differs from that of the first shard"
        ):
            GgufFile.open(first)


def test_the_declared_number_of_tensors_holds(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    shard_file(1, 2, [], "y").write(tmp_path / "m-00002-of-00002.gguf")
    shard_file(0, 2, [("split.tensors.count", "int32", 3)], "x").write(first)
    with pytest.raises(CorruptModelFile, match="expected 3 tensors, found 2"):
        GgufFile.open(first)


@pytest.mark.parametrize(
    "pair", [("split.count", "uint16", 0), ("split.count", "string", "2"), ("split.no", "int32", -1)]
)
def test_nonsense_in_the_split_keys(tmp_path: Path, pair: tuple[str, str, Any]) -> None:
    path = HandMade([pair]).write(tmp_path / "m.gguf")
    with pytest.raises(CorruptModelFile, match=r"metadata keys split\.no and split\.count"):
        GgufFile.open(path)


def test_single_files_with_and_without_split_keys(tmp_path: Path) -> None:
    for name in ("m-00001-of-00001.gguf", "m.gguf", "a-b-00001-of-1.gguf", "noext"):
        for file in (HandMade(tensors=[("x", [8], 0, 0)], data=bytes(32)), shard_file(0, 1, [], "x")):
            with GgufFile.open(file.write(tmp_path / name)) as opened:
                assert list(opened.tensors) == ["x"], name
