"""Runs one operation of the registry again and again, stopping it at its n-th system call; says what is left.

Used by test_faults.py as ``python -m tests.registry.fault_driver FOLDER OPERATION``. It is a process of its
own because it forks for every point, which a test process with threads should not. Modes: ``kill`` ends the
process before the n-th call, ``torn`` in the middle of the n-th write, ``power`` like kill but bytes that
were never synced are lost; ENOSPC, EIO, EACCES let the n-th call fail.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rase.errors import EngineError, ModelNotFound
from rase.registry.store import ModelRegistry
from tests.support.stores import toy_gguf, toy_tokenizer

MODES = ("kill", "power", "ENOSPC", "EIO", "EACCES")
CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")
KILLED, FAILED, COMPLETED, CRASHED = 86, 87, 88, 89


class Recorder:
    """Replaces the changing calls of ``os``; counts them, and acts at number ``at``."""

    def __init__(self, store: Path, at: int, mode: str) -> None:
        self.store, self.at, self.mode = str(store), at, mode
        self.count = 0
        self.trace: list[list[str]] = []
        self.names: dict[int, str] = {}  # open descriptors
        self.unsynced: set[str] = set()
        self.real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self.wrap(name))

    def wrap(self, name: str) -> Callable[..., Any]:
        real = self.real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                descriptor = real(*args, **kwargs)  # reading changes nothing
                self.names[descriptor] = os.fspath(args[0])
                return descriptor
            subject = self.names.get(args[0], "?") if isinstance(args[0], int) else os.fspath(args[0])
            if "dir_fd" in kwargs and kwargs["dir_fd"] is not None and not os.path.isabs(subject):
                subject = os.path.join(self.names.get(kwargs["dir_fd"], "?"), subject)
            self.count += 1
            self.trace.append([name, os.path.relpath(subject, self.store)])
            if self.count == self.at:
                self.strike(name, real, args)
            result = real(*args, **kwargs)
            if name == "open":
                self.names[result] = subject
            elif name == "write":
                self.unsynced.add(subject)
            elif name == "fsync":
                self.unsynced.discard(subject)
            elif name in ("replace", "rename") and subject in self.unsynced:
                self.unsynced.add(os.fspath(args[1]))
            return result

        return call

    def strike(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.mode == "torn" and name == "write":
            real(args[0], bytes(args[1])[: len(args[1]) // 2])
        if self.mode == "power":
            for path in self.unsynced:
                if os.path.exists(path):
                    os.truncate(path, 0)
        if self.mode in ("kill", "torn", "power"):
            os._exit(KILLED)
        raise OSError(getattr(errno, self.mode), os.strerror(getattr(errno, self.mode)))


def prepare(folder: Path) -> None:
    """Weights, tokenizers, and a store with 'old' (its tokenizer attached, its weights owned) and 'other'."""
    for number in range(3):
        toy_gguf(folder / f"{number}.gguf", number)
        toy_tokenizer(folder / f"tokenizer-{number}.json", number)
    registry = ModelRegistry.open(folder / "template")
    registry.import_local("other", folder / "2.gguf")
    own(registry, folder, "old", 0)
    registry.attach_tokenizer("old", folder / "tokenizer-0.json")


def own(registry: ModelRegistry, folder: Path, id: str, number: int) -> None:
    """Register a model that the store owns, as a pulled package is."""
    with registry.workspace() as workspace:
        shutil.copyfile(folder / f"{number}.gguf", workspace / "toy.gguf")
        registry.import_local(id, workspace / "toy.gguf", take=True)


OPERATIONS: dict[str, Callable[[ModelRegistry, Path], Any]] = {
    "import": lambda registry, folder: registry.import_local("new", folder / "1.gguf"),
    "attach": lambda registry, folder: registry.attach_tokenizer("old", folder / "tokenizer-1.json"),
    "replace": lambda registry, folder: registry.import_local("old", folder / "1.gguf"),
    "remove": lambda registry, folder: registry.remove("old"),
    "take": lambda registry, folder: own(registry, folder, "new", 1),
    "replace-taken": lambda registry, folder: own(registry, folder, "old", 1),
}


def relocate(template: Path, store: Path) -> None:
    """A copy of the template store; manifests hold absolute paths, so those of the template are rewritten."""
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(template, store)
    for manifest in (store / "manifests").glob("*.toml"):
        manifest.write_text(manifest.read_text().replace(f"{template}/", f"{store}/"))


def child(store: Path, folder: Path, operation: str, at: int, mode: str, report: Path) -> int:
    """Run the operation with the fault in place; never returns to the caller's frame."""
    try:
        registry = ModelRegistry.open(store, lock_timeout=2)
        recorder = Recorder(store, at, mode)
        recorder.install()
        try:
            OPERATIONS[operation](registry, folder)
            code, text = COMPLETED, ""
        except EngineError as error:
            code, text = FAILED, f"{type(error).__name__}: {error}"
        for name, real in recorder.real.items():
            setattr(os, name, real)
        report.write_text(json.dumps({"error": text, "trace": recorder.trace, "count": recorder.count}))
        return code
    except BaseException:
        report.write_text(json.dumps({"error": traceback.format_exc(), "trace": [], "count": 0}))
        return CRASHED


def look(store: Path) -> dict[str, Any]:
    """Open the store as the next process would and say what it holds."""
    registry = ModelRegistry.open(store, lock_timeout=2)
    state: dict[str, Any] = {"models": {}, "broken": [], "wrong": []}
    good, broken = registry.scan()
    state["broken"] = [f"{id}: {error}" for id, error in broken.items()]
    for manifest in good:
        state["models"][manifest.id] = [manifest.sha256, manifest.tokenizer_sha256]
        try:
            registry.verify(manifest.id)
        except EngineError as error:
            state["wrong"].append(f"{manifest.id}: {error}")
    state["files"] = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    state["empty"] = sorted(
        str(path.relative_to(store)) for path in store.rglob("*") if path.is_dir() and not any(path.iterdir())
    )
    with contextlib.suppress(ModelNotFound):
        registry.remove("old")  # the lock is free, and the next change works
    registry.import_local("next", store.parent / "2.gguf")
    return state


def sweep(folder: Path, operation: str, mode: str, only: set[int] | None = None) -> list[dict[str, Any]]:
    """Every n (of ``only``, where given) until the operation completes undisturbed."""
    points: list[dict[str, Any]] = []
    for at in range(1, 200) if only is None else sorted(only):
        store, report = folder / "store", folder / "report.json"
        relocate(folder / "template", store)
        report.write_text("{}")
        pid = os.fork()
        if pid == 0:
            os._exit(child(store, folder, operation, at, mode, report))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        entry = {"at": at, "code": code, **json.loads(report.read_text() or "{}"), "state": look(store)}
        points.append(entry)
        if code in (COMPLETED, CRASHED) and entry.get("count", 0) < at:
            break
    return points


def main() -> None:
    folder, operation = Path(sys.argv[1]), sys.argv[2]
    prepare(folder)
    runs = {mode: sweep(folder, operation, mode) for mode in MODES}
    writes = {at for at, (name, _) in enumerate(runs["kill"][-1]["trace"], 1) if name == "write"}
    runs["torn"] = sweep(folder, operation, "torn", {*writes, len(runs["kill"])})
    json.dump(runs, sys.stdout)


if __name__ == "__main__":
    main()
