"""Reach: how much text one token can stand for at most, so how many tokens a text has at least."""

from __future__ import annotations

import string
from collections.abc import Iterable
from functools import cached_property

__all__ = ["Reach"]

_LETTERS = string.ascii_letters.encode()
_SIGNS = (string.digits + string.punctuation).encode()
_HIGH = bytes(range(0x80, 0x100))
# NFC changes no text to less than a ninth of its UTF-8 bytes: full decomposition keeps a third of every
# character (U+212A becomes K), and composing takes at most three bytes for one (U+0390).
_NFC_SHRINKS = 9


class Reach:
    """A lower bound of the number of tokens, in linear time and without encoding.

    It holds for tokenizers that lose no text: no unknown token, no piece dropped on the way. ``spellings``
    are all spellings of all tokens, ``nfc`` says that text is composed first, ``strips`` that some added
    token swallows the blanks beside it.
    """

    def __init__(self, spellings: Iterable[bytes], *, nfc: bool = False, strips: bool = False) -> None:
        self._spellings, self._nfc, self._strips = spellings, nfc, strips

    @cached_property
    def _most(self) -> dict[bytes, int]:
        """For each kind of bytes the most that one token has of it; ``b""`` stands for all bytes."""
        most = dict.fromkeys((_LETTERS, _SIGNS, _HIGH, b""), 1)
        for spelling in set(self._spellings):
            if len(spelling) > most[b""]:
                most[b""] = len(spelling)
            for kind in (_LETTERS, _SIGNS, _HIGH):
                if len(spelling) > most[kind]:
                    most[kind] = max(most[kind], _count(spelling, kind))
        return most

    def least(self, text: str) -> int:
        """The number of tokens that ``text`` has at least."""
        data = text.encode("utf-8", "surrogatepass")
        most, high = self._most, _count(data, _HIGH)
        lost = high // 2 if self._nfc else 0  # a mark that joins a letter or sign has two bytes or more
        bounds = [_least(_count(data, kind) - lost, most[kind]) for kind in (_LETTERS, _SIGNS)]
        if not self._strips:
            if not self._nfc:
                bounds.append(_least(high, most[_HIGH]))
            size = len(data) // _NFC_SHRINKS if self._nfc and high else len(data)
            bounds.append(_least(size, most[b""]))
        return max(0, *bounds)


def _count(data: bytes, kind: bytes) -> int:
    return len(data) - len(data.translate(None, kind))


def _least(amount: int, each: int) -> int:
    return -(-amount // each)
