"""Segment: a piece of a prompt that knows who wrote it, so that text stays data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["Kind", "Segment", "join_segments"]

Kind = Literal["markup", "text", "assistant"]
_KINDS = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt text and its kind.

    ``markup`` comes from the chat template (or is a raw prompt): every added token is parsed.
    ``text`` is system, user or tool content: no added token is parsed.
    ``assistant`` is an earlier answer: user-defined tokens (``<think>``) are parsed, control tokens not.
    """

    text: str
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"unknown kind of segment: {self.kind!r}")


def join_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Merge neighbours of the same kind and drop empty ones; the joined text does not change."""
    joined: list[tuple[list[str], Kind]] = []
    for segment in segments:
        if not segment.text:
            continue
        if joined and joined[-1][1] == segment.kind:
            joined[-1][0].append(segment.text)
        else:
            joined.append(([segment.text], segment.kind))
    return [Segment("".join(texts), kind) for texts, kind in joined]
