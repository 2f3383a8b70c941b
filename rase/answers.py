"""What the completion pipeline gives back: pieces while it runs; choices, usage and timings at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Choice", "Completion", "FinishReason", "Piece", "TokenLogprob"]

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TokenLogprob:
    """One chosen token: natural-log probability before temperature and filters, and the best alternatives."""

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()  # (id, text, logprob), best first


@dataclass
class Piece:
    """What one token added to a choice. ``text`` may be empty: half a character, or held back for a stop.

    ``reasoning`` is what it added there, where the request tells reasoning from text.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    reasoning: str = ""


@dataclass
class Choice:
    """One finished answer. ``token_ids`` holds every token that was generated, those of a stop string too.

    Where the request tells reasoning from text, ``reasoning`` is what stood in the thinking tags, and
    ``reasoning_tokens`` counts its tokens, tags included; else they are None and 0.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob]
    reasoning: str | None = None
    reasoning_tokens: int = 0


@dataclass
class Completion:
    """All choices with usage and timings.

    ``ttft_s`` is from the call of ``run`` to the first token, waiting for the session included; ``prefill_s``
    the computation of the prompt; ``decode_s`` from the first token to the end, over all choices.
    """

    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    model: str
    fingerprint: str

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: tokens after the first of each choice, over the time that they took."""
        steps = self.completion_tokens - len(self.choices)
        return steps / self.decode_s if steps > 0 and self.decode_s > 0 else 0.0
