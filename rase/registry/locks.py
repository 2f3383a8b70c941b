"""Locks of the store: one for changes, and one per download in progress so that dead ones can be told from
live.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rase.errors import StoreError, StoreLocked
from rase.registry.files import make_folder, remove_file, remove_tree, store_error, store_errors

__all__ = ["clear_dead_workspaces", "dead_workspaces_possible", "file_lock", "workspace"]


@contextlib.contextmanager
def file_lock(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock file ``path`` against other threads and processes; a killed holder leaves it free.

    Raises ``StoreLocked`` after ``timeout`` seconds, ``StoreError`` when the file cannot be locked at all.
    """
    from filelock import FileLock, Timeout  # costs 80 ms, which only a changing command pays

    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        raise StoreLocked(
            f"another process changes the store {str(path.parent)!r}",
            expected=f"its lock within {timeout:g} seconds",
            hint="Try again when the other command has ended.",
        ) from None
    except OSError as error:
        raise store_error(f"the lock {str(path)!r} could not be taken", error) from error
    except NotImplementedError:
        raise StoreError(
            f"the file system of {str(path.parent)!r} has no file locks",
            hint="Choose a store on a local disk with --store or RASE_STORE.",
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def workspace(root: Path, timeout: float) -> Iterator[Path]:
    """An empty folder inside the store for a download; it goes with the block, or at the first opening after
    a kill.
    """
    incoming = root / "incoming"
    folder = incoming / secrets.token_hex(8)
    mark = folder.with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        with (
            file_lock(root / ".lock", timeout),
            store_errors(f"no download folder could be made in {str(root)!r}"),
        ):
            make_folder(incoming)
            stack.callback(remove_file, mark)
            stack.enter_context(file_lock(mark, 0))
            stack.callback(remove_tree, folder)
            os.mkdir(folder)
        yield folder


def dead_workspaces_possible(root: Path) -> bool:
    """Whether anything lies in ``incoming`` at all: the cheap question before taking locks."""
    try:
        return any(os.scandir(root / "incoming"))
    except OSError:
        return False


def clear_dead_workspaces(root: Path) -> None:
    """Remove download folders whose process is gone. The caller holds the store's lock."""
    incoming = root / "incoming"
    for name in sorted({entry.name.removesuffix(".lock") for entry in os.scandir(incoming)}):
        folder, mark = incoming / name, incoming / f"{name}.lock"
        try:
            with file_lock(mark, 0):
                remove_tree(folder)
                remove_file(mark)
        except StoreLocked:
            continue  # its owner lives
