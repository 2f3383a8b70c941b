"""Memory that may be used: control groups of both versions, process limit, the least of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rase import memory


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_2_counts_the_tightest_group_and_droppable_cache(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/box/inner\n")
    root = tmp_path / "fs"
    group(
        root / "box",
        memory__max="1000\n",
        memory__current="700\n",
        memory__stat="anon 600\ninactive_file 100\n",
    )
    group(
        root / "box" / "inner", memory__max="max\n", memory__current="700\n", memory__stat="inactive_file 0\n"
    )
    assert memory.cgroup_available(root, own) == 400
    group(root / "box" / "inner", memory__max="750\n")
    assert memory.cgroup_available(root, own) == 50


def test_version_1(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("5:cpu,memory:/box\n3:pids:/box\n")
    root = tmp_path / "fs"
    group(root / "memory" / "box", memory__limit_in_bytes="1000", memory__usage_in_bytes="900",
          memory__stat="total_inactive_file 30\n")  # fmt: skip
    group(
        root / "memory", memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="5", memory__stat=""
    )
    assert memory.cgroup_available(root, own) == 130


def test_more_in_use_than_the_limit_is_none_left(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/\n")
    group(tmp_path, memory__max="10", memory__current="20", memory__stat="")
    assert memory.cgroup_available(tmp_path, own) == 0


@pytest.mark.parametrize("text", ["", "0::/absent\n"])
def test_no_limit(tmp_path: Path, text: str) -> None:
    own = tmp_path / "cgroup"
    own.write_text(text)
    assert memory.cgroup_available(tmp_path / "fs", own) is None
    assert memory.cgroup_available(tmp_path, tmp_path / "absent") is None


def test_the_limit_of_the_process_counts() -> None:
    code = """
import resource, psutil
from rase.memory import available_memory, limit_headroom
assert limit_headroom() is None
free = available_memory()
now = psutil.Process().memory_info().vms
resource.setrlimit(resource.RLIMIT_AS, (now + 300_000_000, resource.RLIM_INFINITY))
print(free > 300_000_000, 200_000_000 < available_memory() <= 300_000_000, limit_headroom() <= 300_000_000)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["True"] * 3, done.stdout + done.stderr
