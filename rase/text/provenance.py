"""Mixed: a string that remembers which of its characters the chat template wrote.

A template is code that joins its own markup with what people wrote. To a template a Mixed is an ordinary
string: every test and method sees the plain characters. Beside them it carries runs of (length, kind). What
loses them on the way is a plain string, and that counts as text: an unknown operation can take the meaning of
markup away, but can never turn what a person wrote into markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from rase.text.segments import Kind, Segment, join_segments

__all__ = ["Mixed", "joined", "segments_of"]

Runs = tuple[tuple[int, Kind], ...]


class Mixed(str):
    """A str with runs of kinds that cover it. Operations that keep or move characters keep their kinds."""

    __slots__ = ("_runs",)
    _runs: Runs

    def __new__(cls, text: str, kind: Kind) -> Mixed:
        self = super().__new__(cls, text)
        self._runs = ((len(text), kind),) if text else ()
        return self

    # str(x), the | string filter and the output of a template keep the kinds.
    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return _make(super().__mul__(count), self._runs * max(0, count.__index__()))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        """``"<|%s|>" % role``: with %s alone each part keeps its kind; other formats give text."""
        arguments = values if isinstance(values, tuple) else (values,)
        parts = self.split("%s")
        if any("%" in part for part in parts) or len(parts) != len(arguments) + 1:
            return super().__mod__(values)
        pieces: list[str] = [parts[0]]
        for argument, part in zip(arguments, parts[1:], strict=True):
            pieces += [str(argument), part]
        return joined(pieces)

    def __getitem__(self, key: Any) -> str:
        start, stop, step = key.indices(len(self)) if isinstance(key, slice) else (0, 0, 0)
        if step == 1:
            return self._cut(start, stop)
        if isinstance(key, slice):
            return str.__getitem__(self, key)
        text = str.__getitem__(self, key)
        index = key.__index__() % len(self)
        return self._cut(index, index + 1) if text else text

    def __iter__(self) -> Iterator[str]:
        return (self._cut(index, index + 1) for index in range(len(self)))

    def strip(self, chars: str | None = None) -> str:
        start = len(self) - len(super().lstrip(chars))
        return self._cut(start, max(start, len(super().rstrip(chars))))

    def lstrip(self, chars: str | None = None) -> str:
        return self._cut(len(self) - len(super().lstrip(chars)), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return self._cut(0, len(super().rstrip(chars)))

    def removeprefix(self, prefix: str) -> str:
        return self._cut(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str) -> str:
        return self._cut(0, len(super().removesuffix(suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(super().split(sep, maxsplit), None if sep is None else len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(super().rsplit(sep, maxsplit), None if sep is None else len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines, start = [], 0
        for line, whole in zip(super().splitlines(keepends), super().splitlines(True), strict=True):
            lines.append(self._cut(start, start + len(line)))
            start += len(whole)
        return lines

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, middle, _ = super().partition(sep)
        first, second = len(head), len(head) + len(middle)
        return self._cut(0, first), self._cut(first, second), self._cut(second, len(self))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, middle, _ = super().rpartition(sep)
        first, second = len(head), len(head) + len(middle)
        return self._cut(0, first), self._cut(first, second), self._cut(second, len(self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if old == "":
            return super().replace(old, new, count)
        return joined_by(new, self.split(old, count))

    def join(self, parts: Iterable[str]) -> str:
        return joined_by(self, list(parts))

    def lower(self) -> str:
        return self._same_length(super().lower())

    def upper(self) -> str:
        return self._same_length(super().upper())

    def title(self) -> str:
        return self._same_length(super().title())

    def capitalize(self) -> str:
        return self._same_length(super().capitalize())

    def _same_length(self, text: str) -> str:
        return _make(text, self._runs) if len(text) == len(self) else text

    def _cut(self, start: int, stop: int) -> str:
        if start == 0 and stop == len(self):
            return self
        runs, place = [], 0
        for length, kind in self._runs:
            kept = min(place + length, stop) - max(place, start)
            if kept > 0:
                runs.append((kept, kind))
            place += length
        return _make(str.__getitem__(self, slice(start, max(start, stop))), tuple(runs))

    def _locate(self, parts: list[str], gap: int | None) -> list[str]:
        """The parts that a split gave, cut out of this string again to get their kinds back.

        ``gap`` is the length of the separator; None for runs of blanks, which no part starts with unless it
        starts the string, so that searching cannot find a part too early.
        """
        cuts: list[str] = []
        start = 0
        for part in parts:
            start = self.index(part, start) if gap is None else start
            cuts.append(self._cut(start, start + len(part)))
            start += len(part) + (gap or 0)
        return cuts


def joined(parts: Iterable[str]) -> str:
    """The concatenation of ``parts``, each character with the kind that it had."""
    texts: list[str] = []
    runs: list[tuple[int, Kind]] = []
    mixed = False
    for part in parts:
        if not part:
            continue
        texts.append(part)
        for length, kind in _runs_of(part):
            if runs and runs[-1][1] == kind:
                runs[-1] = (runs[-1][0] + length, kind)
            else:
                runs.append((length, kind))
        mixed = mixed or isinstance(part, Mixed)
    text = str.join("", texts)
    return _make(text, tuple(runs)) if mixed else text


def joined_by(glue: str, parts: list[str]) -> str:
    """``glue.join(parts)`` with kinds."""
    pieces: list[str] = []
    for index, part in enumerate(parts):
        pieces += [glue, part] if index else [part]
    return joined(pieces)


def segments_of(text: str) -> list[Segment]:
    """A rendered text as segments; what carries no kind is text."""
    segments, place, plain = [], 0, str.__getitem__(text, slice(None))
    for length, kind in _runs_of(text):
        segments.append(Segment(plain[place : place + length], kind))
        place += length
    return join_segments(segments)


def _runs_of(text: str) -> Runs:
    return text._runs if isinstance(text, Mixed) else ((len(text), "text"),)


def _make(text: str, runs: Runs) -> str:
    mixed = str.__new__(Mixed, text)
    mixed._runs = runs
    return mixed
