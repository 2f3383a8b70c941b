"""Files of the store: streaming SHA-256 and writes that a crash at any instant cannot tear.

Every system call that changes a folder goes through ``os.…`` of this module, so that tests can stop the
process at each one of them. Data is never written through buffered file objects for the same reason.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from rase.errors import Cancelled, ModelFileNotFound, StoreError

__all__ = [
    "CancelCheck", "Progress", "TEMP_SUFFIX", "hash_file", "make_folder", "open_regular", "read_regular",
    "remove_file", "remove_tree", "store_error", "store_errors", "sync_file", "sync_folder", "write_atomic",
    "write_new",
]  # fmt: skip

Progress = Callable[[int, int], object]  # (bytes done, bytes in all; 0 when the total is unknown)
CancelCheck = Callable[[], bool]

TEMP_SUFFIX = ".tmp"
_CHUNK = 1 << 20  # large enough that hashing and reading, which release the GIL, are all the time there is
_counter = itertools.count()
_log = logging.getLogger("rase.registry")

_ELSEWHERE = "choose another store with --store or RASE_STORE."
_HINTS = {
    errno.ENOSPC: f"Free disk space, or {_ELSEWHERE}",
    errno.EDQUOT: f"Your disk quota is used up: free space, or {_ELSEWHERE}",
    errno.EROFS: f"The file system is read-only: {_ELSEWHERE}",
    errno.EACCES: f"Correct the access rights, or {_ELSEWHERE}",
    errno.EPERM: f"Correct the access rights, or {_ELSEWHERE}",
    errno.EIO: "The disk reports an error: check it before you try again.",
}
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


@contextlib.contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn every ``OSError`` inside into a ``StoreError`` that says ``what`` failed and what to do."""
    try:
        yield
    except OSError as error:
        raise store_error(what, error) from error


def store_error(what: str, error: OSError) -> StoreError:
    """The ``StoreError`` that says what failed, why, and the next step."""
    return StoreError(
        what, found=error.strerror or str(error), hint=_HINTS.get(error.errno or 0), errno=error.errno
    )


def open_regular(path: str | os.PathLike[str], what: str = "the file") -> int:
    """Open a regular file for reading and return its descriptor; never blocks on a pipe or a device.

    Raises ``ModelFileNotFound`` when nothing (or no regular file) is there, ``StoreError`` when it cannot be
    read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _ABSENT:
            raise ModelFileNotFound(
                f"{what} {os.fspath(path)!r} cannot be opened", found=error.strerror, hint="Check the path."
            ) from None
        raise StoreError(
            f"{what} {os.fspath(path)!r} cannot be read", found=error.strerror, errno=error.errno,
            hint="Correct its access rights." if error.errno in (errno.EACCES, errno.EPERM) else None,
        ) from None  # fmt: skip
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise ModelFileNotFound(f"{what} {os.fspath(path)!r}", expected="a regular file", found=kind)
    return descriptor


def read_regular(path: str | os.PathLike[str], limit: int, what: str) -> bytes:
    """Return at most ``limit`` bytes of a regular file. Raises as ``open_regular`` does."""
    descriptor = open_regular(path, what)
    try:
        parts: list[bytes] = []
        with store_errors(f"{what} {os.fspath(path)!r} cannot be read"):
            while limit > 0 and (part := os.read(descriptor, min(limit, _CHUNK))):
                parts.append(part)
                limit -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def hash_file(
    path: str | os.PathLike[str], progress: Progress | None = None, cancelled: CancelCheck | None = None, *,
    what: str = "the file",
) -> tuple[str, int]:  # fmt: skip
    """Return (SHA-256 in hexadecimal, size in bytes) of a file, read once in pieces of 1 MiB without the GIL.

    ``progress(done, total)`` is called after each piece. ``cancelled()`` true raises ``Cancelled``.
    Raises ``ModelFileNotFound`` or ``StoreError``.
    """
    descriptor = open_regular(path, what)
    try:
        total, done, digest = os.fstat(descriptor).st_size, 0, hashlib.sha256()
        buffer = memoryview(bytearray(_CHUNK))
        with store_errors(f"{what} {os.fspath(path)!r} could not be read"):
            while count := os.readv(descriptor, [buffer]):
                digest.update(buffer[:count])
                done += count
                if progress is not None:
                    progress(done, max(total, done))
                if cancelled is not None and cancelled():
                    raise Cancelled(f"hashing {os.fspath(path)!r} was cancelled", done=done, total=total)
        return digest.hexdigest(), done
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create ``path`` and its missing parents, each name durable. Raises ``OSError``."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(folder)
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises ``OSError``."""
    sync_file(path, os.O_DIRECTORY)


def sync_file(path: Path, flags: int = 0) -> None:
    """Make the bytes of a file durable. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, chunks: Iterator[bytes | memoryview]) -> None:
    """Write a new file and make its bytes durable; on failure it is gone again. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:  # a write may take only a part
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        remove_file(path)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the file ``path`` by ``data``: afterwards, whatever happens, it is the old one or the new one.

    Temporary file in the same folder, fsync, rename, fsync of the folder. When the last step fails the old
    file is put back, so that an error always means that nothing changed. Raises ``OSError``.
    """
    try:
        old: bytes | None = path.read_bytes()
    except FileNotFoundError:
        old = None
    temporary = temporary_name(path)
    write_new(temporary, iter([data]))
    try:
        os.replace(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise
    try:
        sync_folder(path.parent)
    except OSError:
        if old is None:
            remove_file(path)
        else:
            with contextlib.suppress(OSError):
                write_new(temporary, iter([old]))
                os.replace(temporary, path)
        raise


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no model id can have and that the next opening of the store removes."""
    return path.with_name(
        f".{path.name[:100]}.{os.getpid()}-{next(_counter)}-{secrets.token_hex(4)}{TEMP_SUFFIX}"
    )


def remove_file(path: Path) -> bool:
    """Remove a file that nothing needs any more; a failure is logged, and the next opening tries again."""
    return _remove(path, os.unlink)


def remove_tree(path: Path) -> bool:
    """Remove a folder that nothing needs any more, like ``remove_file``."""
    return _remove(path, shutil.rmtree)


def _remove(path: Path, remove: Callable[[Path], None]) -> bool:
    try:
        remove(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        _log.warning("could not remove %s: %s", path, error.strerror)
        return False
    return True
