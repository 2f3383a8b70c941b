"""Added tokens: finding control and user-defined tokens in text, leftmost and longest first."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rase.errors import TokenizerError
from rase.text.segments import Kind, Segment
from rase.text.vocabulary import TokenKind

__all__ = ["AddedToken", "AddedTokens", "Match"]

MAX_TOKEN = 4096  # characters; the longest in published vocabularies, runs of blanks, have some hundreds
MAX_MARKUP = 2**22  # characters of all added tokens together, which take some seconds to prepare
_BLANKS_AFTER = re.compile(r"\s*")
_Node = dict[str, Any]  # a trie: next character -> node; the key "" marks the end of a token


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in the text before the tokenizer's model sees it.

    ``lstrip`` and ``rstrip`` swallow the blanks beside it; ``single_word`` refuses word characters beside it
    (the flags of the `tokenizers` library).
    """

    text: str
    id: int
    kind: TokenKind
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def blank(self) -> bool:
        """A run of blanks is part of how text is cut, not markup: it is recognised in data too."""
        return self.kind == TokenKind.USER_DEFINED and self.text.isspace()


@dataclass(frozen=True, slots=True)
class Match:
    """One token found at ``text[start:end]``, swallowed blanks included."""

    start: int
    end: int
    id: int


class AddedTokens:
    """The added tokens of one vocabulary, and which of them each kind of segment may contain."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        every = list(self._by_text.values())
        _check_size(self._by_text)
        user = [token for token in every if token.kind == TokenKind.USER_DEFINED]
        self._patterns: dict[Kind, re.Pattern[str] | None] = {
            "markup": _compile(token.text for token in every),
            "assistant": _compile(token.text for token in user),
            "text": _compile(token.text for token in user if token.blank),
        }

    def find(self, segments: list[Segment]) -> Iterator[Match]:
        """Yield the tokens of the joined text of ``segments`` in order; none spans two segments.

        Neighbours of the same kind must have been merged (``join_segments``).
        """
        text = segments[0].text if len(segments) == 1 else "".join(segment.text for segment in segments)
        begin = cursor = 0
        for segment in segments:
            end = begin + len(segment.text)
            pattern = self._patterns[segment.kind]
            if pattern is not None:
                for found in pattern.finditer(text, begin, end):
                    match = self._match(text, found, cursor)
                    if match is not None:
                        yield match
                        cursor = match.end
            begin = end

    def _match(self, text: str, found: re.Match[str], cursor: int) -> Match | None:
        start, end = found.span()
        if start < cursor:  # swallowed by the token before
            return None
        token = self._by_text[found.group()]
        if token.single_word and (
            (start > 0 and _in_word(text[start - 1])) or (end < len(text) and _in_word(text[end]))
        ):
            return None
        if token.lstrip:
            while start > cursor and text[start - 1].isspace():
                start -= 1
        if token.rstrip:
            blanks = _BLANKS_AFTER.match(text, end)
            end = blanks.end() if blanks else end
        return Match(start, end, token.id)


def _in_word(character: str) -> bool:
    """Whether a character is a word character as the library sees it (UTS #18, annex C: \\w)."""
    category = unicodedata.category(character)
    return (
        category[0] in "LM"
        or category in ("Nd", "Nl", "Pc")
        or character in "\u200c\u200d"
        or (
            category == "So"
            and ("\u24b6" <= character <= "\u24e9" or "\U0001f130" <= character <= "\U0001f189")
        )
    )


def _check_size(texts: Collection[str]) -> None:
    """Refuse what would take minutes and gigabytes to prepare: both grow with every character."""
    longest = max(map(len, texts), default=0)
    if longest > MAX_TOKEN:
        raise TokenizerError("an added token", expected=f"at most {MAX_TOKEN} characters", found=longest)
    if (total := sum(map(len, texts))) > MAX_MARKUP:
        raise TokenizerError(
            "the added tokens of this vocabulary", expected=f"at most {MAX_MARKUP} characters", found=total
        )


def _compile(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that matches the longest of ``texts`` at a place, in time independent of their number."""
    root: _Node = {}
    for text in texts:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    if not root:
        return None
    try:
        return re.compile(_pattern(root), re.DOTALL)
    except RecursionError:
        raise TokenizerError("the added tokens of this vocabulary nest too deeply") from None


def _pattern(node: _Node) -> str:
    branches = []
    for character, child in sorted(node.items()):
        if character == "":
            continue
        literal = re.escape(character)
        while len(child) == 1 and "" not in child:  # a chain without a choice
            ((character, child),) = child.items()
            literal += re.escape(character)
        branches.append(literal + _pattern(child))
    if not branches:
        return ""
    # The end of a shorter token is the last choice, so that the longest one wins.
    return f"(?:{'|'.join(branches)}){'?' if '' in node else ''}"
