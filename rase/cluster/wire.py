"""What travels between the server and a replica: an ``Ask``, and what it is answered with, in this order:
``Started``, lists of pieces where it is a stream, and completions; or a ``Failed`` at any place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rase.answers import Completion, Piece
from rase.completion import TextRequest
from rase.errors import BackendError, EngineError
from rase.server.job import Started

__all__ = ["Ask", "Done", "Failed", "Message", "Pieces", "Started"]


@dataclass(frozen=True)
class Ask:
    """One request for one model; ``prefix`` is what the router knows it by (``rase.cluster.prefixes``)."""

    model: str
    requests: tuple[TextRequest, ...]
    stream: bool
    seconds: float | None = None  # until its deadline
    prefix: tuple[bytes, ...] = ()

    @property
    def messages(self) -> list[dict[str, Any]] | None:
        """The chat as Ray's own prefix router reads it."""
        messages = self.requests[0].messages
        return None if messages is None else [{"content": message.content} for message in messages]

    @property
    def prompt(self) -> str:
        """The prompt as Ray's own prefix router reads it: token ids as words."""
        prompt = self.requests[0].prompt
        return prompt if isinstance(prompt, str) else " ".join(map(str, prompt or ()))


@dataclass(frozen=True)
class Pieces:
    """What came since the last message, in order: (number of the prompt, piece)."""

    pieces: list[tuple[int, Piece]]


@dataclass(frozen=True)
class Done:
    """The end of an answer."""

    completions: list[Completion]


@dataclass(frozen=True)
class Failed:
    """The end of a request that has none. Always a value: what is raised, Ray would log with its text."""

    error: EngineError

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """``error`` itself, where it is ours to tell."""
        if isinstance(error, EngineError):
            return cls(error)
        return cls(
            BackendError(f"{type(error).__name__} in a replica", hint="The replica's log names the place.")
        )


Message = Started | Pieces | Done | Failed
