"""``DiskTier``: pages of the prefix cache that outlive the process.

A page is known by the model's files, all that decides its bits and where they stand in it (numerics class,
layout of the backend, version), and by every token from the start of the prompt to its end, with their
roles. All of it goes into a key, page by page, so a key that is found is the page that was meant.

The driver copies a page when the prefix tree takes it in, a thread writes it; what comes faster than the disk
takes it is not kept. On the way back the driver reads, checks and copies: a page costs a fraction of what
computing it does.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rase.backends.base import Program
    from rase.engine.page_files import PageFiles

__all__ = ["DiskTier"]

QUEUE_BYTES = 256 << 20  # of pages that wait for the disk
EXIT_S = 5.0  # how long the interpreter waits at exit until they are written
_ABSENT = -1

log = logging.getLogger("rase.engine")


class DiskTier:
    """The pages of ``program`` in ``files``; ``identity`` names what else decides what they hold.

    ``keep`` and ``find`` belong to the driver.
    """

    def __init__(self, files: PageFiles, program: Program, identity: Sequence[object]) -> None:
        facts = [
            *identity, program.numerics_class, program.page_layout, program.one_arithmetic,
            program.page_tokens, *program.page_bytes,
        ]  # fmt: skip
        self.root = _digest(json.dumps(facts).encode())
        self.stored = self.restored = 0  # pages
        self._files, self._program = files, program
        self._head = struct.Struct(f"<{len(program.page_bytes)}q")  # bytes of each group's page; -1 = absent
        self._most = self._head.size + sum(program.page_bytes)
        self._waiting: deque[tuple[str, str, list[bytes]]] = deque()
        self._bytes = 0  # that wait
        self._gate = threading.Lock()
        self._writing = self._broken = False
        _tiers.add(self)

    def key(self, parent: str, page: object) -> str:
        """The key of a page behind ``parent`` (``root`` for the first) that the tree knows as ``page``."""
        return _digest(bytes.fromhex(parent) + np.asarray(page, np.int64).tobytes())

    def keep(self, key: str, parent: str, pages: tuple[int, ...]) -> None:
        """Store a page, whose ids by cache group are ``pages``, unless it is there or there is no time."""
        known = self._files.known
        if self._broken or key in known or not (parent == self.root or parent in known):
            return
        size = sum(size for size, page in zip(self._program.page_bytes, pages, strict=True) if page >= 0)
        if self._bytes + size > QUEUE_BYTES:
            return
        save = self._program.save_page
        parts = [save(group, page) if page >= 0 else b"" for group, page in enumerate(pages)]
        lengths = [len(part) if page >= 0 else _ABSENT for part, page in zip(parts, pages, strict=True)]
        known.add(key)
        with self._gate:
            self._waiting.append((key, parent, [self._head.pack(*lengths), *parts]))
            self._bytes += size
            if not self._writing:
                self._writing = True
                threading.Thread(target=self._write, name="rase-prefix-store", daemon=True).start()

    def find(self, key: str, parent: str) -> list[bytes | None] | None:
        """The page of each cache group (None where it was absent), or None for a page that is not there."""
        if key not in self._files.known or (data := self._files.read(key, parent, self._most)) is None:
            return None
        lengths = self._head.unpack_from(data)
        found: list[bytes | None] = []
        at = self._head.size
        for length in lengths:
            found.append(None if length == _ABSENT else data[at : at + length])
            at += max(0, length)
        self.restored += 1
        return found

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what was kept is written; False after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._writing:
            if end is not None and time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def _write(self) -> None:
        """The body of the thread, which ends when there is nothing left to write."""
        while True:
            with self._gate:
                if not self._waiting:
                    self._writing = False
                    return
                key, parent, parts = self._waiting.popleft()
            try:
                if not self._broken:
                    self._files.write(key, parent, parts)
                    self.stored += 1
            except OSError as error:
                self._broken = True  # a full disk, most likely: reading goes on
                self._files.known.discard(key)
                log.warning("prefix store: nothing more is kept: %s", error.strerror)
            with self._gate:
                self._bytes -= sum(map(len, parts[1:]))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=24).hexdigest()


_tiers: weakref.WeakSet[DiskTier] = weakref.WeakSet()


def _flush_all() -> None:
    end = time.monotonic() + EXIT_S
    for tier in list(_tiers):
        tier.flush(max(0.0, end - time.monotonic()))


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_tiers.clear)  # whoever writes is not there
