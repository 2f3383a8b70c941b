"""``Observer``: what the scheduler tells about its work, for metrics. The base class listens to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rase.engine.request import Request

__all__ = ["Observer"]


class Observer:
    """Subclass and override. Every method is called on the driver thread: it must be quick and must not
    raise.
    """

    def queued(self, request: Request) -> None:
        """A request was accepted and waits."""

    def admitted(self, request: Request, waited_s: float, cached_tokens: int) -> None:
        """A request joined the batch; ``cached_tokens`` of its prompt need no compute."""

    def step(self, decode_tokens: int, prompt_tokens: int, sequences: int, seconds: float) -> None:
        """One pass over the model: its tokens by kind, the sequences in it, and how long it took."""

    def first_token(self, request: Request, seconds: float) -> None:
        """The first token of a choice, ``seconds`` after its request was handed in."""

    def token(self, request: Request, seconds: float) -> None:
        """A later token, ``seconds`` after the one before it of the same choice."""

    def drafts(self, request: Request, proposed: int, accepted: int) -> None:
        """Drafts were verified."""

    def preempted(self, request: Request) -> None:
        """A sequence gave its pages to an older one and will be computed again."""

    def evicted(self, pages: int) -> None:
        """The prefix cache gave pages back."""

    def finished(self, request: Request, reason: str) -> None:
        """A request has ended: stop, length, cancelled, deadline or error."""
