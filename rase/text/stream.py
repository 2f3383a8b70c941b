"""StopText: shows streamed text up to the first stop string, and never a part of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["StopText"]


class StopText:
    """Holds back only the text that may still become a stop string.

    The stop string that is complete first wins (of several that end together, the longest), so the result
    does not depend on how the text was cut into pieces. Each character costs constant time per stop string
    (Knuth, Morris and Pratt 1977). Empty stop strings never match.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._searches = [_Search(stop) for stop in dict.fromkeys(stops) if stop]
        self._held: deque[str] = deque()  # pieces that the longest partial match covers
        self._length = 0  # characters in them
        self.stopped = False  # a stop string was found: nothing more will be shown

    def push(self, piece: str) -> str:
        """Take the next piece of text and return what may be shown now."""
        if self.stopped:
            return ""
        if not self._searches:
            return piece
        self._held.append(piece)
        for character in piece:
            self._length += 1
            if length := max([search.step(character) for search in self._searches]):
                self.stopped = True
                shown = self._release(self._length - length)
                self._held.clear()
                return shown
        return self._release(self._length - max([search.matched for search in self._searches]))

    def finish(self) -> str:
        """End the text and return what was held back in vain."""
        return self._release(self._length) if not self.stopped else ""

    def _release(self, count: int) -> str:
        """Take ``count`` characters off the start of what is held."""
        self._length -= count
        shown: list[str] = []
        while count:
            piece = self._held.popleft()
            if len(piece) > count:
                self._held.appendleft(piece[count:])
                piece = piece[:count]
            shown.append(piece)
            count -= len(piece)
        return "".join(shown)


class _Search:
    """One stop string and how much of it the end of the text spells."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._shorter = _borders(stop)
        self.matched = 0

    def step(self, character: str) -> int:
        """Take one character; return the length of the stop string when it is complete, else 0."""
        matched = self.matched
        while matched and self._stop[matched] != character:
            matched = self._shorter[matched - 1]
        self.matched = matched + (self._stop[matched] == character)
        return self.matched if self.matched == len(self._stop) else 0


def _borders(stop: str) -> list[int]:
    """For each prefix of ``stop``, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for place in range(1, len(stop)):
        while length and stop[place] != stop[length]:
            length = borders[length - 1]
        length += stop[place] == stop[length]
        borders[place] = length
    return borders
