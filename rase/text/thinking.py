"""ThinkSplitter: tells the reasoning of an answer from its content, as the text comes.

Models write ``<think>reasoning</think>content``. The opening tag may stand in the prompt instead, where the
template put it; the answer may be cut before the closing tag; a tag may come twice. What is shown never
depends on how the text was cut into pieces.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["PromptState", "ThinkSplitter", "prompt_state"]

OPEN, CLOSE = "<think>", "</think>"
PromptState = Literal["open", "closed", "unknown"]


def prompt_state(prompt: str) -> PromptState:
    """Whether the end of a rendered prompt has opened the reasoning, or opened and closed it."""
    end = prompt.rstrip()
    if end.endswith(OPEN):
        return "open"
    return "closed" if end.endswith(CLOSE) and OPEN in end else "unknown"


class ThinkSplitter:
    """``push`` and ``finish`` return (reasoning, content): what may be shown now of either.

    Blanks around the reasoning and before the content belong to neither. With a prompt of state "unknown" an
    answer that does not start with the opening tag is held back until a closing tag shows that it was
    reasoning, or the end shows that it was content.
    """

    def __init__(self, state: PromptState = "unknown") -> None:
        # start: blanks and a part of a tag; undecided: other text; after: behind a closing tag
        self._state = {"open": "reasoning", "closed": "after", "unknown": "start"}[state]
        self._earlier: list[str] = []  # text of an undecided answer in which no closing tag starts
        self._held = ""  # what may still become a tag, or blanks that may turn out to be the last
        self._begun = False  # reasoning has been shown

    @property
    def over(self) -> bool:
        """Whether the reasoning has ended, or there was none."""
        return self._state in ("after", "content")

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece of text."""
        if self._state == "content":
            return "", text
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._start()
        if self._state == "undecided":
            self._decide()
        if self._state == "reasoning":
            reasoning = self._reason()
        return reasoning, self._after() if self._state == "after" else ""

    def finish(self) -> tuple[str, str]:
        """End the text and return what was held back in vain."""
        held, self._held = "".join([*self._earlier, self._held]), ""
        if self._state == "reasoning":
            return self._shown(held.rstrip()), ""
        return "", held

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held, self._state = text[len(OPEN) :], "reasoning"
        elif not OPEN.startswith(text):
            self._state = "undecided"

    def _decide(self) -> None:
        if CLOSE in self._held:
            self._held, self._earlier = "".join([*self._earlier, self._held]), []
            self._state = "reasoning"
        elif cut := len(self._held) - _partial(self._held):
            self._earlier.append(self._held[:cut])
            self._held = self._held[cut:]

    def _reason(self) -> str:
        before, tag, behind = self._held.partition(CLOSE)
        if tag:
            self._held, self._state = behind, "after"
            return self._shown(before.rstrip())
        safe = len(self._held) - _partial(self._held)
        shown = self._held[:safe].rstrip()
        self._held = self._held[len(shown) :]
        return self._shown(shown)

    def _shown(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text

    def _after(self) -> str:
        rest = self._held.lstrip()
        while rest.startswith(CLOSE):
            rest = rest[len(CLOSE) :].lstrip()
        if CLOSE.startswith(rest):  # nothing, or the start of one more closing tag
            self._held = rest
            return ""
        self._held, self._state = "", "content"
        return rest


def _partial(text: str) -> int:
    """Length of the longest end of ``text`` that starts a closing tag."""
    return next((n for n in range(min(len(CLOSE) - 1, len(text)), 0, -1) if CLOSE.startswith(text[-n:])), 0)
