"""A bounded walk over a GGUF header: every count is checked against what is left before it is used.

The header is read in pieces that grow, because its length is only known once it has been parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rase.errors import CorruptModelFile
from rase.gguf.files import InputFile

if TYPE_CHECKING:
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
        self._fetch(self.position + length, what)

    def take(self, length: int, what: str) -> bytes:
        """The next ``length`` bytes."""
        start = self.position
        end = start + length
        if end > len(self._data):
            self._fetch(end, what)
        self.position = end
        return self._data[start:end]

    def uint(self, width: int, what: str) -> int:
        """The next unsigned integer of ``width`` bytes."""
        return int.from_bytes(self.take(width, what), "little")

    def count(self, item_bytes: int, what: str, limit: int = MAX_ITEMS) -> int:
        """The next u64, a number of items that take at least ``item_bytes`` each: no more than can follow."""
        number = self.uint(8, what)
        left = self.file.size - self.position
        if number > left // item_bytes:
            expected = f"at most {left // item_bytes}, since {left} bytes are left"
            raise self.file.corrupt(what, expected=expected, found=number)
        if number > limit:
            raise self.file.unsupported(what, expected=f"at most {limit}", found=number)
        return number

    def text(self, what: str, limit: int = MAX_HEADER) -> str:
        """The next string: a u64 length, then UTF-8."""
        raw = self.take(self.count(1, f"the length of {what}", limit), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._not_utf8(what, raw, error) from None

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
            position = start + from_bytes(data[position:start], "little")
            if position > available:
                self.position = start
                self.need(position - start, f"string {index} of {what}")
                data = self._data
                available = len(data)
            try:
                append(data[start:position].decode())
            except UnicodeDecodeError as error:
                raise self._not_utf8(f"string {index} of {what}", data[start:position], error) from None
        self.position = position
        return out

    def numbers(self, number: int, dtype: str, what: str) -> NDArray[Any]:
        """The next ``number`` values of the NumPy type ``dtype`` as a read-only array."""
        import numpy as np

        kind = np.dtype(dtype)
        return np.frombuffer(self.take(number * kind.itemsize, what), dtype=kind)

    def up_to(self, end: int, what: str) -> bytes:
        """Every byte of the file before ``end``."""
        if end > len(self._data):
            self._fetch(end, what)
        return self._data[:end]

    def _fetch(self, end: int, what: str) -> None:
        """Read on until the bytes before ``end`` are there, after checking that they may be."""
        have, size = len(self._data), self.file.size
        if end <= have:
            return
        if end > size:
            raise self.file.cut(what, self.position, end)
        if end > MAX_HEADER:
            raise self.file.unsupported(
                f"{what} lies too far from the start",
                expected=f"a header of at most {MAX_HEADER} bytes",
                found=end,
            )
        target = min(size, max(end, min(2 * have, MAX_HEADER), FIRST_PIECE))
        self._data += self.file.read(have, target - have, what)

    def _not_utf8(self, what: str, raw: bytes, error: UnicodeDecodeError) -> CorruptModelFile:
        """The error for a string that is not UTF-8: no string is ever replaced or repaired."""
        near = raw[max(0, error.start - 8) : error.start + 8]
        return self.file.corrupt(
            f"{what} is not UTF-8", found=f"{near!r} at byte {error.start} of it",
            hint="Convert the model again: GGUF strings are UTF-8.",
        )  # fmt: skip
