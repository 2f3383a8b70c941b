"""One regular file, read only with ``pread``: a file that shrinks, changes or vanishes is a typed error.

Nothing is mapped: reading a mapped file that another process cuts kills this one, a short ``pread`` is
just a number.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from rase.errors import CorruptModelFile, ModelFileNotFound, UnsupportedFormat

__all__ = ["InputFile"]

AGAIN = "Copy, download or convert the file again."


class InputFile:
    """An open file with the size it had when it was opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open ``path``; raises ``ModelFileNotFound`` when it is absent, unreadable or not a regular file."""
        self.path = Path(path)
        self._fd = -1
        try:
            # Without O_NONBLOCK the open of a named pipe would wait for a writer.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            state = os.fstat(self._fd)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ModelFileNotFound(
                f"model file '{self.path}' cannot be opened", found=reason,
                hint="Check the path and its rights.", path=str(path),
            ) from None  # fmt: skip
        if not stat.S_ISREG(state.st_mode):
            self.close()
            raise ModelFileNotFound(
                f"'{self.path}' is not a regular file", hint="Name the .gguf file itself.", path=str(path)
            )
        self.size = state.st_size
        self._identity = _identity(state)

    def read(self, offset: int, length: int, what: str) -> bytes:
        """Return exactly ``length`` bytes from ``offset``; ``what`` names them in errors.

        Raises ``CorruptModelFile`` naming the missing byte range when the file is shorter by now. The caller
        has checked the range against ``size``, so that ``length`` never exceeds the file.
        """
        parts: list[bytes] = []
        done = 0
        while done < length:
            try:
                part = os.pread(self._fd, length - done, offset + done)
            except OSError as error:
                raise self._unreadable(what, error) from None
            if not part:
                raise self._shrunk(what, offset + done, offset + length)
            parts.append(part)
            done += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, buffer: memoryview, offset: int, what: str) -> None:
        """Fill the writable byte ``buffer`` from ``offset``; errors as those of ``read``."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(what, error) from None
            if not count:
                raise self._shrunk(what, offset + done, offset + len(buffer))
            done += count

    def check_unchanged(self) -> None:
        """Raise ``CorruptModelFile`` when size or modification time differ from those at opening."""
        if _identity(os.fstat(self._fd)) != self._identity:
            hint = "Wait until the program that writes it has finished, then try again."
            raise self.corrupt("it changed while it was read", hint=hint)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def corrupt(self, what: str, *, hint: str = AGAIN, **facts: Any) -> CorruptModelFile:
        """The error for a file that contradicts its own format; ``facts`` as ``EngineError`` takes them."""
        return CorruptModelFile(f"model file '{self.path}': {what}", hint=hint, path=str(self.path), **facts)

    def unsupported(self, what: str, *, hint: str = AGAIN, **facts: Any) -> UnsupportedFormat:
        """The error for a file that rase does not run."""
        return UnsupportedFormat(f"model file '{self.path}': {what}", hint=hint, path=str(self.path), **facts)

    def cut(self, what: str, start: int, end: int, **facts: Any) -> CorruptModelFile:
        """The error for ``what``, which lies in bytes ``start`` to ``end``, beyond the end of the file."""
        missing = (max(start, self.size), end)
        return self.corrupt(
            f"it is cut: {what} misses bytes {missing[0]} to {missing[1]}",
            expected=f"bytes {start} to {end}", found=f"a file of {self.size} bytes",
            hint="Copy or download the file again.", missing=missing, **facts,
        )  # fmt: skip

    def _shrunk(self, what: str, start: int, end: int) -> CorruptModelFile:
        return self.corrupt(
            f"it was cut while it was read: {what} misses bytes {start} to {end}", missing=(start, end)
        )

    def _unreadable(self, what: str, error: OSError) -> CorruptModelFile:
        return self.corrupt(
            f"{what} cannot be read", found=error.strerror, hint="Check the disk or the network share."
        )


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
