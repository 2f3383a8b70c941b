"""One pass hands out tensors and hashes every byte, and what it hands out is what it hashed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from rase.errors import Cancelled, CorruptModelFile
from rase.gguf.reader import GgufFile
from rase.gguf.stream import PIECE, HashedTensors
from tests.support.gguf_build import HandMade, write_gguf, write_split_gguf

RNG = np.random.default_rng(11)
TENSORS = {
    "small": RNG.normal(size=(3, 5)).astype(np.float32),  # 60 bytes: a gap of 4 follows
    "large": RNG.normal(size=(3, PIECE // 4)).astype(np.float32),  # three pieces
    "odd": RNG.normal(size=(1, PIECE // 4 + 1)).astype(np.float32),
    "last": RNG.normal(size=(2, 7)).astype(np.float32),
}
METADATA = {"general.architecture": "llama"}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)


@pytest.mark.parametrize("wanted", [[], ["large"], ["small", "last"], ["last", "odd", "small", "large"]])
def test_wanted_tensors_come_in_file_order_and_all_bytes_are_hashed(path: Path, wanted: list[str]) -> None:
    with path.open("ab") as out:
        out.write(b"trailing bytes belong to the file, too")
    progress: list[tuple[int, int]] = []
    with GgufFile.open(path) as file:
        source = HashedTensors(file, progress=lambda done, total: progress.append((done, total)))
        seen = {}
        for info, data in source.stream(wanted):
            assert data.readonly and len(data) == info.nbytes
            seen[info.name] = bytes(data)
        assert list(seen) == [name for name in TENSORS if name in wanted]
        assert all(seen[name] == TENSORS[name].tobytes() for name in seen)
        assert source.digests == (sha256(path),)
    size = path.stat().st_size
    assert progress[-1] == (size, size) and {total for _, total in progress} == {size}
    done = [count for count, _ in progress]
    assert done == sorted(done) and max(np.diff(done)) <= PIECE


def test_every_shard_has_its_digest(tmp_path: Path) -> None:
    paths = write_split_gguf(tmp_path, "m", METADATA, TENSORS, tensors_per_shard=1)
    with GgufFile.open(paths[2]) as file:
        source = HashedTensors(file)
        assert [info.name for info, _ in source.stream({"odd", "small"})] == ["small", "odd"]
        assert source.digests == tuple(sha256(path) for path in paths) and len(set(source.digests)) == 4


def test_digests_wait_for_the_end(path: Path) -> None:
    with GgufFile.open(path) as file:
        source = HashedTensors(file)
        stream = source.stream(["small"])
        next(stream)
        with pytest.raises(RuntimeError, match="exhausted"):
            _ = source.digests
        assert list(stream) == [] and source.digests == (sha256(path),)
        with pytest.raises(RuntimeError, match="once"):
            next(source.stream([]))


def test_a_tensor_that_the_model_lacks(path: Path) -> None:
    with (
        GgufFile.open(path) as file,
        pytest.raises(CorruptModelFile, match=r"it lacks tensor 'output\.weight'"),
    ):
        next(HashedTensors(file).stream(["small", "output.weight"]))


def test_cancelling_between_pieces(path: Path) -> None:
    calls = 0

    def cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 3

    with GgufFile.open(path) as file:
        source = HashedTensors(file, cancelled=cancelled)
        with pytest.raises(Cancelled) as caught:
            for _ in source.stream(["large"]):
                pass
        assert calls == 4 and 0 < caught.value.data["done"] < caught.value.data["total"]


@pytest.mark.parametrize("keep", ["nothing of the tensor", "half of the tensor", "all but the last byte"])
def test_a_file_that_shrinks_while_it_is_streamed(path: Path, keep: str) -> None:
    with GgufFile.open(path) as file:
        info = file.tensors["last"]
        stream = HashedTensors(file).stream(["small", "last"])
        assert next(stream)[0].name == "small"
        length = {"nothing of the tensor": info.offset, "half of the tensor": info.offset + 30}
        os.truncate(path, length.get(keep, info.offset + info.nbytes - 1))
        with pytest.raises(
            CorruptModelFile, match="it was cut while it was read: tensor 'last' misses bytes"
        ):
            next(stream)


@pytest.mark.parametrize("change", ["same size", "longer"])
def test_a_file_that_changes_while_it_is_streamed(path: Path, change: str) -> None:
    with GgufFile.open(path) as file:
        stream = HashedTensors(file).stream(["small", "large"])
        next(stream)
        with path.open("r+b") as out:
            out.seek(0 if change == "same size" else path.stat().st_size)
            out.write(b"GGUF")
        os.utime(path, ns=(1, 1))  # a clock too coarse to tell the two writes apart would hide the first case
        next(stream)
        with pytest.raises(CorruptModelFile, match="it changed while it was read"):
            next(stream)


def test_a_file_that_is_replaced_or_removed_stays_readable(path: Path) -> None:
    digest = sha256(path)
    with GgufFile.open(path) as file:
        path.unlink()
        path.write_bytes(b"another file")
        source = HashedTensors(file)
        assert [bytes(data) for _, data in source.stream(["odd"])] == [TENSORS["odd"].tobytes()]
        assert source.digests == (digest,)


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = HandMade([("k", "uint8", 1)], alignment=0).write(tmp_path / "m.gguf")
    with GgufFile.open(path) as file:
        source = HashedTensors(file)
        assert list(source.stream([])) == [] and source.digests == (sha256(path),)
