"""``PageFiles``: a folder of checked files, each known by what it holds, at most so many bytes of them.

A file is read whole and only if its checksum is right, so one that is cut, damaged or renamed is a file that
is not there. Writing goes to a temporary name first: whoever reads sees all of a file or none. Nothing is
forced to the disk, since what a power cut spoils the checksum finds.

Each file has a parent without which nobody can use it; when room is needed, what was used least recently goes
first, and a parent counts as used when its children are. Several processes may share a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rase.errors import InvalidSetting

__all__ = ["PageFiles"]

MAGIC = b"RASEKV01"
_DIGEST = 32  # bytes of the checksum
_NAME = re.compile(r"([0-9a-f]{48})-([0-9a-f]{48})\.kv")
_TEMPORARY = ".tmp"
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
_STALE_S = 3600.0  # a temporary file this old belongs to a process that was killed
_ROOM = 0.9  # of the budget is left after room was made, so that it is not made for every file

log = logging.getLogger("rase.engine")


class _Found(NamedTuple):
    path: str
    key: str
    parent: str
    size: int
    used: float


class PageFiles:
    """The files below ``folder``; they take at most ``budget`` bytes soon after each write.

    Keys are 48 hexadecimal digits. Raises ``InvalidSetting`` when the folder cannot be made or written.
    """

    def __init__(self, folder: str | os.PathLike[str], budget: int) -> None:
        self.folder, self.budget = Path(folder), budget
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self._temporary()
            os.close(os.open(probe, _WRITE, 0o600))
            probe.unlink()
        except OSError as error:
            raise InvalidSetting(
                "the prefix store", expected="a folder that can be written", found=error.strerror,
                hint="Choose another --prefix-store or RASE_PREFIX_STORE.") from None  # fmt: skip
        found = self._scan()
        self.known = {file.key for file in found}
        self._total = sum(file.size for file in found)

    def read(self, key: str, parent: str, most: int) -> bytes | None:
        """The contents of a file of at most ``most`` bytes, or None: absent, unreadable or not as written."""
        path = self._path(key, parent)
        try:
            data = _regular(path, most + len(MAGIC) + _DIGEST)
        except OSError as error:
            self.known.discard(key)
            log.debug("prefix store: %s", error.strerror)
            return None
        head, contents = data[: len(MAGIC) + _DIGEST], memoryview(data)[len(MAGIC) + _DIGEST :]
        if head != MAGIC + _checksum(key, [contents]):
            log.warning("prefix store: a file is damaged and was removed")
            self._remove(path, key)
            return None
        with suppress(OSError):
            os.utime(path)
        return bytes(contents)

    def write(self, key: str, parent: str, parts: Sequence[bytes]) -> None:
        """Store ``parts`` joined. Raises ``OSError``."""
        size = len(MAGIC) + _DIGEST + sum(map(len, parts))
        if size > self.budget:
            return
        temporary = self._temporary()
        try:
            with open(os.open(temporary, _WRITE, 0o600), "wb") as file:
                file.write(MAGIC + _checksum(key, parts))
                file.writelines(parts)
            os.replace(temporary, self._path(key, parent))
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self.known.add(key)
        self._total += size
        if self._total > self.budget:
            self._make_room()

    def _make_room(self) -> None:
        found = self._scan()
        self._total = sum(file.size for file in found)
        if self._total <= self.budget:
            return
        used = _used_with_children(found)
        for file in sorted(found, key=lambda file: used[file.key]):
            if self._total <= _ROOM * self.budget:
                return
            self._remove(Path(file.path), file.key)
            self._total -= file.size

    def _scan(self) -> list[_Found]:
        """What is there, of other processes too; forgotten temporary files are removed."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):  # another process may remove it meanwhile
                    facts = entry.stat(follow_symlinks=False)
                    if match := _NAME.fullmatch(entry.name):
                        found.append(_Found(entry.path, match[1], match[2], facts.st_size, facts.st_mtime))
                    elif entry.name.endswith(_TEMPORARY) and time.time() - facts.st_mtime > _STALE_S:
                        os.unlink(entry.path)
        return found

    def _remove(self, path: Path, key: str) -> None:
        self.known.discard(key)
        with suppress(OSError):
            path.unlink()

    def _path(self, key: str, parent: str) -> Path:
        return self.folder / f"{key}-{parent}.kv"

    def _temporary(self) -> Path:
        return self.folder / (secrets.token_hex(16) + _TEMPORARY)


def _regular(path: Path, most: int) -> bytes:
    """The contents of a regular file of at most ``most`` bytes, b"" of anything else. Raises ``OSError``."""
    number = os.open(path, _READ)
    try:
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > most:
            return b""
        with open(number, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(number)


def _checksum(key: str, parts: Sequence[bytes | memoryview]) -> bytes:
    """Of the contents, and of the key: a file under another name is no other file."""
    digest = hashlib.blake2b(key.encode(), digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _used_with_children(found: list[_Found]) -> dict[str, tuple[float, int]]:
    """When each file, or any below it, was used last, and how far it is from the deepest of those.

    Sorted by it, children come before their parents.
    """
    files = {file.key: file for file in found}
    used: dict[str, tuple[float, int]] = {}
    for file in sorted(found, key=lambda file: -file.used):
        height = 0
        at: _Found | None = file
        while at is not None and at.key not in used:
            used[at.key] = (file.used, height)
            at, height = files.get(at.parent), height + 1
    return used
