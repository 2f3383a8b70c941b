"""Writing and hashing of single files: atomic writes keep the old file, hashing holds no GIL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rase.registry.files import hash_file, write_atomic


def test_write_atomic_keeps_the_old_file_when_the_folder_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    real: Callable[[Path], None] = write_atomic.__globals__["sync_folder"]

    def fail(folder: Path) -> None:
        raise OSError(5, "no")

    monkeypatch.setitem(write_atomic.__globals__, "sync_folder", fail)
    with pytest.raises(OSError, match="no"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    monkeypatch.setitem(write_atomic.__globals__, "sync_folder", real)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_hashing_releases_the_gil(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(64 << 20))
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        digest, size = hash_file(path)
    finally:
        stop.set()
        thread.join()
    assert size == 64 << 20 and digest == "3b6a07d0d404fab4e23b6d34bc6696a6a312dd92821332385e5af7c01c421351"
    assert ticks[0] > 5
