"""A bounded walk over the header of a GGUF file: every count is checked against what is left before it is used.

The header is read in pieces that grow, because its length is only known once it has been parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rase.errors import CorruptModelFile, UnsupportedFormat
from rase.gguf.files import InputFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MAX_HEADER", "MAX_ITEMS", "MAX_NAME", "Cursor"]

MAX_HEADER = 256 * 2**20  # bytes; a vocabulary of 262,144 tokens takes 6 MiB
MAX_ITEMS = 2**24  # elements of one array
MAX_NAME = 65535  # bytes of a key or a tensor name, the limit that the specification sets for keys
FIRST_PIECE = 256 * 2**10


class Cursor:
    """Reads little-endian values one after the other; ``position`` is the offset in the file."""

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.position = 0
        self._data = b""

    def need(self, length: int, what: str) -> None:
        """Make the next ``length`` bytes available, or raise ``CorruptModelFile`` naming what is missing."""
        end = self.position + length
        if end <= len(self._data):
            return
        size = self.file.size
        if end > size:
            raise CorruptModelFile(
                f"model file '{self.file.path}' ends inside its header, in {what}",
                expected=f"bytes {self.position} to {end}", found=f"a file of {size} bytes",
                hint="Copy or download the file again.", path=str(self.file.path), missing=(max(size, self.position), end),
            )  # fmt: skip
        if end > MAX_HEADER:
            raise UnsupportedFormat(
                f"the header of model file '{self.file.path}', in {what}",
                expected=f"at most {MAX_HEADER} bytes", found=f"at least {end}", path=str(self.file.path),
            )  # fmt: skip
        have = len(self._data)
        target = min(size, max(end, 2 * have, FIRST_PIECE))
        self._data += self.file.read(have, target - have, what)

    def take(self, length: int, what: str) -> bytes:
        """The next ``length`` bytes."""
        self.need(length, what)
        start = self.position
        self.position = start + length
        return self._data[start : self.position]

    def uint(self, width: int, what: str) -> int:
        """The next unsigned integer of ``width`` bytes."""
        return int.from_bytes(self.take(width, what), "little")

    def count(self, item_bytes: int, what: str, limit: int = MAX_ITEMS) -> int:
        """The next u64, a number of items that take at least ``item_bytes`` each: no more than can follow."""
        number = self.uint(8, what)
        left = self.file.size - self.position
        if number > left // item_bytes:
            raise CorruptModelFile(
                f"model file '{self.file.path}': {what}",
                expected=f"at most {left // item_bytes}, since {left} bytes are left", found=number,
                hint="Copy or download the file again.", path=str(self.file.path),
            )  # fmt: skip
        if number > limit:
            raise UnsupportedFormat(
                f"model file '{self.file.path}': {what}", expected=f"at most {limit}", found=number,
                path=str(self.file.path),
            )  # fmt: skip
        return number

    def text(self, what: str, limit: int | None = None) -> str:
        """The next string: a u64 length, then UTF-8."""
        length = self.count(1, f"the length of {what}", limit=MAX_HEADER if limit is None else limit)
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.not_utf8(what, raw, error) from None

    def texts(self, number: int, what: str) -> list[str]:
        """The next ``number`` strings: the one loop over a whole vocabulary, so it is kept tight."""
        out: list[str] = []
        append, from_bytes = out.append, int.from_bytes
        data, position = self._data, self.position
        available = len(data)
        for index in range(number):
            start = position + 8
            if start > available:
                self.position = position
                self.need(8, f"string {index} of {what}")
                data = self._data
                available = len(data)
            length = from_bytes(data[position:start], "little")
            position = start + length
            if position > available:
                self.position = start
                self.need(length, f"string {index} of {what}")
                data = self._data
                available = len(data)
            try:
                append(data[start:position].decode())
            except UnicodeDecodeError as error:
                raise self.not_utf8(f"string {index} of {what}", data[start:position], error) from None
        self.position = position
        return out

    def numbers(self, number: int, dtype: str, what: str) -> NDArray[np.generic]:
        """The next ``number`` values of the NumPy type ``dtype`` as a read-only array."""
        import numpy as np

        kind = np.dtype(dtype)
        return np.frombuffer(self.take(number * kind.itemsize, what), dtype=kind)

    def up_to(self, end: int) -> bytes:
        """Every byte of the file before ``end``, which the caller has checked against the file's size."""
        if end > len(self._data):
            self._data += self.file.read(len(self._data), end - len(self._data), "the padding after the header")
        return self._data[:end]

    def not_utf8(self, what: str, raw: bytes, error: UnicodeDecodeError) -> CorruptModelFile:
        """The error for a string that is not UTF-8: no string is ever replaced or repaired."""
        near = raw[max(0, error.start - 8) : error.start + 8]
        return CorruptModelFile(
            f"model file '{self.file.path}': {what} is not UTF-8", found=f"{near!r} at byte {error.start} of it",
            hint="Convert the model again; GGUF strings are UTF-8.", path=str(self.file.path),
        )  # fmt: skip
