"""One pass hands out tensors in slices and hashes every byte, and what it hands out is what it hashed."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rase.errors import Cancelled, CorruptModelFile
from rase.gguf.files import InputFile
from rase.gguf.formats import TensorInfo
from rase.gguf.reader import GgufFile
from rase.gguf.stream import MAX_THREADS, SLICE, HashedTensors, buffer_bytes
from tests.support.gguf_build import HandMade, write_gguf, write_split_gguf

RNG = np.random.default_rng(11)
TENSORS = {
    "small": RNG.normal(size=(3, 5)).astype(np.float32),  # 60 bytes: a gap of 4 follows
    "large": RNG.normal(size=(3, SLICE // 4)).astype(np.float32),  # three slices
    "odd": RNG.normal(size=(1, SLICE // 4 + 1)).astype(np.float32),
    "last": RNG.normal(size=(2, 7)).astype(np.float32),
}
METADATA = {"general.architecture": "llama"}
THREADS = [1, 2, MAX_THREADS + 1]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)


def whole(source: HashedTensors, names: Sequence[str]) -> dict[str, int]:
    return {name: source.tensors[name].nbytes if name in source.tensors else 1 for name in names}


def nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("wanted", [[], ["large"], ["small", "last"], ["last", "odd", "small", "large"]])
def test_wanted_tensors_come_whole_and_all_bytes_are_hashed(
    path: Path, wanted: list[str], threads: int
) -> None:
    with path.open("ab") as out:
        out.write(b"trailing bytes belong to the file, too")
    progress: list[tuple[int, int]] = []
    seen: dict[str, bytes] = {}

    def take(info: TensorInfo, start: int, data: memoryview) -> None:
        assert data.readonly and start == 0 and len(data) == info.nbytes and info.name not in seen
        seen[info.name] = bytes(data)

    with GgufFile.open(path) as file:
        source = HashedTensors(file, progress=lambda done, total: progress.append((done, total)))
        source.deliver(whole(source, wanted), take, threads)
        assert source.digests == (sha256(path),)
    assert seen == {name: TENSORS[name].tobytes() for name in wanted}
    assert threads > 1 or list(seen) == [name for name in TENSORS if name in wanted]
    size = path.stat().st_size
    assert progress[-1] == (size, size) and {total for _, total in progress} == {size}
    done = [count for count, _ in progress]
    assert done == sorted(set(done))
    if threads == 1:
        assert max(np.diff(done)) <= 3 * SLICE  # the largest tensor, and nothing more


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("grain", [4, 60, 4096 * 3, SLICE - 4, SLICE, SLICE + 8])
def test_slices_are_whole_grains(path: Path, grain: int, threads: int) -> None:
    lock, parts = threading.Lock(), dict[str, dict[int, bytes]]()

    def take(info: TensorInfo, start: int, data: memoryview) -> None:
        assert start % grain == 0 and (len(data) % grain == 0 or start + len(data) == info.nbytes)
        assert len(data) <= max(SLICE, grain)
        with lock:
            assert parts.setdefault(info.name, {}).setdefault(start, bytes(data)) == data

    with GgufFile.open(path) as file:
        source = HashedTensors(file)
        source.deliver(dict.fromkeys(TENSORS, grain), take, threads)
        assert source.digests == (sha256(path),)
    joined = {name: b"".join(data for _, data in sorted(found.items())) for name, found in parts.items()}
    assert joined == {name: tensor.tobytes() for name, tensor in TENSORS.items()}
    assert len(parts["large"]) == -(-3 * SLICE // (max(SLICE // grain, 1) * grain))


@pytest.mark.parametrize("threads", THREADS)
def test_every_shard_has_its_digest(tmp_path: Path, threads: int) -> None:
    paths = write_split_gguf(tmp_path, "m", METADATA, TENSORS, tensors_per_shard=1)
    seen = set()
    with GgufFile.open(paths[2]) as file:
        source = HashedTensors(file)
        source.deliver(whole(source, ["odd", "small"]), lambda info, *_: seen.add(info.name), threads)
        assert seen == {"odd", "small"}
        assert source.digests == tuple(sha256(path) for path in paths) and len(set(source.digests)) == 4


def test_digests_wait_for_the_end(path: Path) -> None:
    with GgufFile.open(path) as file:
        source = HashedTensors(file)

        def take(*_: object) -> None:
            with pytest.raises(RuntimeError, match="complete"):
                _ = source.digests

        source.deliver(whole(source, ["small"]), take)
        assert source.digests == (sha256(path),)
        with pytest.raises(RuntimeError, match="once"):
            source.deliver({}, nothing)


def test_a_tensor_that_the_model_lacks(path: Path) -> None:
    with (
        GgufFile.open(path) as file,
        pytest.raises(CorruptModelFile, match=r"it lacks tensor 'output\.weight'"),
    ):
        HashedTensors(file).deliver({"small": 4, "output.weight": 4}, nothing)


@pytest.mark.parametrize("threads", THREADS)
def test_cancelling_between_slices(path: Path, threads: int) -> None:
    calls, called = 0, threading.Event()

    def cancelled() -> bool:
        nonlocal calls
        calls += 1
        if calls > 3:
            called.set()
        return called.is_set()

    def take(*_: object) -> None:
        assert threads == 1 or called.wait(10), "nobody asked whether the load was cancelled"

    with GgufFile.open(path) as file:
        source = HashedTensors(file, cancelled=cancelled)
        with pytest.raises(Cancelled) as caught:
            source.deliver({"large": 4096}, take, threads)
        assert calls == 4 and 0 < caught.value.data["done"] <= caught.value.data["total"]
        assert all(thread.name != "rase-load" for thread in threading.enumerate())


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("keep", ["nothing of the tensor", "half of the tensor", "all but the last byte"])
def test_a_file_that_shrinks_while_it_is_read(path: Path, keep: str, threads: int) -> None:
    with GgufFile.open(path) as file:
        info = file.tensors["last"]
        length = {"nothing of the tensor": info.offset, "half of the tensor": info.offset + 30}
        os.truncate(path, length.get(keep, info.offset + info.nbytes - 1))
        source = HashedTensors(file)
        with pytest.raises(
            CorruptModelFile, match="it was cut while it was read: tensor 'last' misses bytes"
        ):
            source.deliver(whole(source, ["small", "last"]), nothing, threads)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("change", ["same size", "longer"])
def test_a_file_that_changes_while_it_is_read(path: Path, change: str, threads: int) -> None:
    def take(*_: object) -> None:
        with path.open("r+b") as out:
            out.seek(0 if change == "same size" else path.stat().st_size)
            out.write(b"GGUF")
        os.utime(path, ns=(1, 1))  # a clock too coarse to tell two writes apart would hide the first case

    with GgufFile.open(path) as file:
        source = HashedTensors(file)
        with pytest.raises(CorruptModelFile, match="it changed while it was read"):
            source.deliver(whole(source, ["small"]), take, threads)
        with pytest.raises(RuntimeError, match="complete"):
            _ = source.digests


def test_a_file_that_is_replaced_or_removed_stays_readable(path: Path) -> None:
    digest, seen = sha256(path), []
    with GgufFile.open(path) as file:
        path.unlink()
        path.write_bytes(b"another file")
        source = HashedTensors(file)
        source.deliver(whole(source, ["odd"]), lambda _, __, data: seen.append(bytes(data)))
        assert seen == [TENSORS["odd"].tobytes()] and source.digests == (digest,)


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = HandMade([("k", "uint8", 1)], alignment=0).write(tmp_path / "m.gguf")
    with GgufFile.open(path) as file:
        source = HashedTensors(file)
        source.deliver({}, nothing, 2)
        assert source.digests == (sha256(path),)


@pytest.mark.parametrize("threads", THREADS)
def test_an_error_of_the_consumer_ends_the_pass(path: Path, threads: int) -> None:
    def take(*_: object) -> None:
        raise ZeroDivisionError

    with GgufFile.open(path) as file:
        with pytest.raises(ZeroDivisionError):
            HashedTensors(file).deliver({"large": 4096}, take, threads)
        assert all(thread.name != "rase-load" for thread in threading.enumerate())


def test_no_more_than_the_stated_slices_are_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that never ends stops the readers; the buffers are as many and as large as said."""
    go, buffers = threading.Event(), set[int]()
    read_into = InputFile.read_into

    def recorded(self: InputFile, buffer: memoryview, offset: int, what: str) -> None:
        buffers.add(np.frombuffer(buffer, np.uint8).ctypes.data)
        assert len(buffer) <= SLICE
        read_into(self, buffer, offset, what)

    monkeypatch.setattr(InputFile, "read_into", recorded)
    with GgufFile.open(path) as file:
        stated = buffer_bytes(file, 4096, 2)
        thread = threading.Thread(
            target=HashedTensors(file).deliver,
            args=(dict.fromkeys(TENSORS, 4096), lambda *_: go.wait(10), 2),
        )
        thread.start()
        time.sleep(0.3)
        go.set()
        thread.join()
    assert len(buffers) <= 2 and stated == 2 * SLICE


class _Interrupt(BaseException):
    """What a signal raises in the main thread, as Ctrl-C raises KeyboardInterrupt."""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no signal to spare")
@pytest.mark.parametrize("threads", [1, 2])
def test_signals_at_any_moment_leave_no_thread_behind(path: Path, threads: int) -> None:
    def strike(*_: object) -> None:
        raise _Interrupt

    def load() -> None:
        with GgufFile.open(path) as file:
            source = HashedTensors(file)
            source.deliver(dict.fromkeys(TENSORS, 4096), nothing, threads)
            assert len(source.digests) == 1

    before, struck = signal.signal(signal.SIGUSR1, strike), 0
    deadline = time.monotonic() + 20
    try:
        for step in range(30):
            timer = threading.Timer(0.001 * step, os.kill, (os.getpid(), signal.SIGUSR1))
            try:
                timer.start()
                while time.monotonic() < deadline:
                    load()
                    time.sleep(0.0001)  # lets the timer run where this thread has the processor for itself
            except _Interrupt:
                struck += 1
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    deadline = time.monotonic() + 5
    while any(thread.name == "rase-load" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread of a load that was interrupted still runs"
        time.sleep(0.01)
    assert struck == 30
