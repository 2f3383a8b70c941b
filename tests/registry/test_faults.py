"""A kill, or a failure, at every system call of every operation leaves each model old or new."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.registry.fault_driver import COMPLETED, FAILED, KILLED, MODES

ROOT = Path(__file__).parents[2]
OPERATIONS = ("import", "attach", "replace", "remove", "take", "replace-taken")


@pytest.fixture(scope="module", params=OPERATIONS)
def swept(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path, Any]]:
    memory = "/dev/shm"  # hundreds of stores are made and removed; what is tested does not depend on the disk
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        command = [sys.executable, "-m", "tests.registry.fault_driver", name, request.param]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        yield request.param, Path(name), json.loads(done.stdout)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def states(folder: Path, operation: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the store holds before and after the operation: id -> [weights hash, tokenizer hash]."""
    zero, one, two = (digest(folder / f"{number}.gguf") for number in range(3))
    first, second = (digest(folder / f"tokenizer-{number}.json") for number in range(2))
    before = {"old": [zero, first], "other": [two, None]}
    after = dict(before)
    if operation in ("import", "take"):
        after["new"] = [one, None]
    elif operation == "attach":
        after["old"] = [zero, second]
    elif operation in ("replace", "replace-taken"):
        after["old"] = [one, None]
    else:
        del after["old"]
    return before, after


def test_every_point_was_tried(swept: tuple[str, Path, Any]) -> None:
    operation, _, runs = swept
    for mode in MODES:  # 'torn' comes besides, at the writes only
        points = runs[mode]
        assert [point["at"] for point in points] == list(range(1, len(points) + 1))
        assert points[-1]["code"] == COMPLETED and points[-1]["count"] == len(points) - 1
    calls = [name for name, _ in runs["kill"][-1]["trace"]]
    assert len(calls) >= 5, f"{operation} makes only {calls}"
    assert {"fsync", "replace"} <= set(calls)


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_kill_leaves_old_or_new(swept: tuple[str, Path, Any], mode: str) -> None:
    operation, folder, runs = swept
    before, after = states(folder, operation)
    seen = []
    for point in runs[mode][:-1]:
        where = f"{operation} stopped at call {point['at']}: {point['state']}"
        assert point["code"] in (KILLED, COMPLETED), where
        state = point["state"]
        assert state["models"] in (before, after), where
        assert state["broken"] == [] and state["wrong"] == [], where
        owned = {f for f in state["files"] if f.startswith("weights/")}
        assert len(owned) == _owned(operation, state["models"] == after), where
        assert [f for f in state["files"] if f.endswith(".tmp") or f.startswith("incoming/")] == [], where
        seen.append(state["models"] == after)
    assert seen == sorted(seen), "a later kill must not undo the operation"
    if mode == "kill":
        assert not seen[0], "a kill before the first call changes nothing"
    assert runs[mode][-1]["state"]["models"] == after


@pytest.mark.parametrize("mode", ["ENOSPC", "EIO", "EACCES"])
def test_a_failure_is_typed_and_changes_nothing(swept: tuple[str, Path, Any], mode: str) -> None:
    operation, folder, runs = swept
    before, after = states(folder, operation)
    for point in runs[mode]:
        where = f"{operation} with {mode} at call {point['at']}: {point.get('error')} {point['state']}"
        assert point["code"] in (FAILED, COMPLETED), where
        state = point["state"]
        # Tidying up after the change may fail without an error: the next opening tidies up.
        assert state["models"] == (before if point["code"] == FAILED else after), where
        assert state["broken"] == [] and state["wrong"] == [], where
        assert [f for f in state["files"] if f.endswith(".tmp") or f.startswith("incoming/")] == [], where
        if point["code"] == FAILED:
            assert point["error"].startswith("StoreError: "), where
    assert any(point["code"] == FAILED for point in runs[mode])


def test_bytes_are_durable_before_the_name_and_the_name_before_success(swept: tuple[str, Path, Any]) -> None:
    operation, _, runs = swept
    trace = [(name, path) for name, path in runs["kill"][-1]["trace"]]
    if operation == "remove":
        assert [name for name, path in trace if path.startswith("manifests")][:2] == ["replace", "fsync"]
        return
    steps = [(name, path) for name, path in trace if path == "manifests" or path.startswith("manifests/.")]
    assert [name for name, _ in steps] == ["open", "write", "fsync", "replace", "fsync"]
    assert len({path for _, path in steps[:4]}) == 1 and steps[4][1] == "manifests"
    if operation in ("take", "replace-taken"):
        moved = [name for name, path in trace].index("replace")
        assert trace[moved - 1] == ("fsync", trace[moved][1]), (
            "the weights are durable before they get their name"
        )
        after_move = trace[moved + 1 :]
        assert after_move[0][0] == "fsync" and after_move[0][1].startswith("weights/")


def _owned(operation: str, done: bool) -> int:
    """How many weight files the store owns before and after the operation."""
    if not done:
        return 1
    return {"import": 1, "attach": 1, "replace": 0, "remove": 0, "take": 2, "replace-taken": 1}[operation]
