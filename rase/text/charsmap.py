"""SentencePiece's own normalisation: the longest match of a compiled table at each place is replaced.

The table (``precompiled_charsmap``) is a double array over UTF-8 bytes, as Darts-clone lays it out (Yata et
al., "A compact static double-array", 2007), and the texts that its values point to. The `tokenizers` library
matches no further than one grapheme, and gives other text for stacked marks.
"""

from __future__ import annotations

import sys
from array import array

from rase.errors import TokenizerError

__all__ = ["Charsmap"]

_DAMAGED = "tokenizer.ggml.precompiled_charsmap is damaged"


class Charsmap:
    """``normalize`` is the table's function. Raises ``TokenizerError`` for a table that is damaged."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if size % 4 or not 4 <= size <= len(data) - 4:
            raise TokenizerError(
                _DAMAGED, expected=f"a table within {len(data)} bytes", found=f"one of {size} bytes"
            )
        self._units = array("I", data[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = data[4 + size :]
        self.normalize("A\u0301 \uff21\u00a0")  # a table of noise fails now

    def normalize(self, text: str) -> str:
        """The text with every longest match replaced, from left to right."""
        data, out = text.encode("utf-8", "surrogatepass"), bytearray()
        at, kept = 0, 0
        while at < len(data):
            value, length = self._longest(data, at)
            if length:
                out += data[kept:at]
                end = self._texts.find(b"\0", value)
                if not 0 <= value <= len(self._texts) or end < 0:
                    raise TokenizerError(
                        "tokenizer.ggml.precompiled_charsmap is damaged", found="a stray value"
                    )
                out += self._texts[value:end]
                at += length
                kept = at
            else:
                at += 1
                while at < len(data) and data[at] & 0xC0 == 0x80:
                    at += 1
        out += data[kept:]
        return out.decode("utf-8", "replace")

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """Value and length in bytes of the longest key at ``at``; length 0 for none."""
        units, count = self._units, len(self._units)
        value = length = 0
        node = _offset(units[0])
        for place in range(at, len(data)):
            byte = data[place]
            node ^= byte
            if node >= count:
                break
            unit = units[node]
            if unit & 0x800000FF != byte:
                break
            node ^= _offset(unit)
            if unit & 0x100:  # a key ends here
                if node >= count:
                    break
                value, length = units[node] & 0x7FFFFFFF, place - at + 1
        return value, length


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)
