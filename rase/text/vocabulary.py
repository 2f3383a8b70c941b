"""Vocabulary: what every token id is spelled like, stands for in bytes, and may be used for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from rase.errors import InvalidRequest

__all__ = [
    "BLANK",
    "TokenKind",
    "Vocabulary",
    "byte_alphabet",
    "byte_level_piece",
    "fallback_byte",
    "sentencepiece_pieces",
    "spells_every_byte",
]

BLANK = "\u2581"  # how SentencePiece spells a blank


class TokenKind(IntEnum):
    """Kinds of token, numbered as ``tokenizer.ggml.token_type`` numbers them (GGUF specification)."""

    ABSENT = 0  # no token has this id
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # markup of the model: never made from text that is data
    USER_DEFINED = 4  # kept whole, but not markup of a turn: <think>, runs of blanks
    UNUSED = 5
    BYTE = 6  # <0x0A>: one byte


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All tokens by id: spelling, bytes and kind. The three sequences have the same length."""

    names: Sequence[str]
    pieces: Sequence[bytes]
    kinds: bytes
    ids: dict[str, int]

    def __len__(self) -> int:
        return len(self.names)

    def is_control(self, token: int) -> bool:
        """Whether the token is markup that an answer does not show."""
        return self.kinds[token] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def spellings(self) -> list[bytes]:
        """What may stand for a token in text: its spelling and its bytes (▁ or a blank)."""
        return [*self.pieces, *(name.encode("utf-8", "replace") for name in self.names)]

    def check(self, token: int) -> int:
        """Return ``token``, or raise ``InvalidRequest`` when no token has this id."""
        if not 0 <= token < len(self.kinds) or self.kinds[token] == TokenKind.ABSENT:
            raise InvalidRequest(
                "a token id that is not in the vocabulary",
                expected=f"0 to {len(self.kinds) - 1}",
                found=token,
            )
        return token


@cache
def byte_alphabet() -> dict[str, int]:
    """The character of each byte in a byte-level vocabulary (GPT-2, ``bytes_to_unicode``), inverted.

    Printable Latin-1 characters stand for themselves; the other 68 bytes take U+0100 onwards in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


@cache
def _byte_table() -> dict[int, str]:
    """For ``str.translate``: characters of the alphabet to those of their bytes, other Latin-1 out of it."""
    bytes_of = byte_alphabet()
    table = {number: "\uffff" for number in range(0x100) if chr(number) not in bytes_of}
    return table | {ord(character): chr(byte) for character, byte in bytes_of.items()}


def byte_level_piece(name: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; a spelling outside the alphabet stands for itself."""
    try:
        return name.translate(_byte_table()).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace")


def sentencepiece_pieces(names: Sequence[str], kinds: Sequence[int]) -> list[bytes]:
    """The bytes of each token of a SentencePiece vocabulary, by its spelling and its kind."""
    return [_sentencepiece(name, kind) for name, kind in zip(names, kinds, strict=True)]


def _sentencepiece(name: str, kind: int) -> bytes:
    if kind == TokenKind.BYTE and (byte := fallback_byte(name)) is not None:
        return bytes([byte])
    if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
        return name.encode("utf-8", "replace")
    return name.replace(BLANK, " ").encode("utf-8", "replace")


def spells_every_byte(names: Container[str]) -> bool:
    """Whether ``names`` holds the fallback token of every byte, so that no text is unknown."""
    return all(f"<0x{byte:02X}>" in names for byte in range(256))


def fallback_byte(name: str) -> int | None:
    """The byte that a byte-fallback token such as ``<0x0A>`` stands for, or None for another spelling."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return int(name[3:5], 16)
        except ValueError:
            return None
    return None
