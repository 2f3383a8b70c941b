"""The generation loop: one decoder, one prompt, tokens until something ends it.

The loop knows neither models nor text. A ``TokenDecoder`` gives logits, a ``Sampler`` picks ids, and the loop
decides when to stop. It works with any decoder; whole models run many answers at once (``scheduler``).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from rase.engine.config import GenerationConfig
from rase.errors import Cancelled, ContextLengthExceeded, SessionBusy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rase.engine.sampler import Sampled

__all__ = [
    "GenerationConfig", "GenerationResult", "GenerationStopReason", "TokenDecoder", "generate",
    "generate_with",
]  # fmt: skip


class TokenDecoder(ABC):
    """One sequence of one model: token ids in, the logits of the next token out.

    ``vocab_size`` is the number of ids that may be chosen: logits beyond it belong to padding rows. None
    means all. ``context_length`` is the most positions the decoder can hold; None means that it has no limit.
    ``cancelled`` is set by the generation loop while it runs: a decoder that works long in ``prefill`` calls
    it between pieces of work and raises ``Cancelled`` when it returns True.
    """

    vocab_size: int | None = None
    context_length: int | None = None
    cancelled: Callable[[], bool] | None = None

    @abstractmethod
    def prefill(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Forget the sequence so far, evaluate the prompt ``ids``, return logits ``(vocab,)``."""

    @abstractmethod
    def decode(self, id: int) -> NDArray[np.float32]:
        """Append one generated token, return logits ``(vocab,)``. They must not change with later calls."""

    def eos_token(self) -> int | None:
        """The end token that the model file declares, or None."""
        return None


class GenerationStopReason(Enum):
    """Why a generation ended. ``MaxTokens`` covers a full context too."""

    MaxTokens = "max_tokens"
    StopToken = "stop_token"
    Cancelled = "cancelled"


@dataclass(frozen=True)
class GenerationResult:
    """What came out: token ids without the stop token, why it ended, one ``Sampled`` a token if asked for."""

    tokens: list[int]
    stop_reason: GenerationStopReason
    logprobs: list[Sampled] | None = None


def generate(
    decoder: TokenDecoder,
    prompt: Sequence[int],
    config: GenerationConfig,
    cancelled: Callable[[], bool] | None = None,
) -> GenerationResult:
    """Generate an answer to ``prompt``; stop when ``cancelled`` returns True. See ``generate_with``."""
    return generate_with(decoder, prompt, config, cancelled, None)


def generate_with(
    decoder: TokenDecoder,
    prompt: Sequence[int],
    config: GenerationConfig,
    cancelled: Callable[[], bool] | None = None,
    on_token: Callable[[int], object] | None = None,
) -> GenerationResult:
    """Generate an answer to ``prompt`` and hand each token id to ``on_token`` as it is chosen.

    ``on_token`` ends the generation by returning False (any other value goes on); the token it was called
    with stays in the result. A stop token is neither passed on nor in the result. ``cancelled`` is asked
    before the prompt, between chunks of the prompt, and before each token. Whatever a callback raises
    propagates unchanged, and the decoder can be used again.

    Prompt and answer together fill at most ``decoder.context_length``: a prompt that leaves no room for one
    token is refused, and a full context ends the answer like ``max_tokens``.

    Raises ``InvalidRequest`` (empty prompt, ids outside the vocabulary), ``InvalidGenerationConfig`` (a
    biased id outside the vocabulary), ``ContextLengthExceeded``, ``InvalidLogits``, ``InsufficientMemory``,
    and ``SessionBusy`` when a callback generates with the decoder that is calling it.
    """
    with _Use(decoder, cancelled):
        if cancelled is not None and cancelled():
            return _result([], GenerationStopReason.Cancelled, config)
        if decoder.vocab_size is not None:
            config.check_vocab(decoder.vocab_size)  # this and the next before any compute
        if decoder.context_length is not None and len(prompt) >= decoder.context_length:
            raise ContextLengthExceeded(len(prompt), decoder.context_length, param="prompt")
        try:
            logits = decoder.prefill(prompt)
        except Cancelled:
            return _result([], GenerationStopReason.Cancelled, config)
        return _loop(decoder, logits, prompt, config, cancelled, on_token)


def _loop(
    decoder: TokenDecoder,
    logits: NDArray[np.float32],
    prompt: Sequence[int],
    config: GenerationConfig,
    cancelled: Callable[[], bool] | None,
    on_token: Callable[[int], object] | None,
) -> GenerationResult:
    from rase.engine.sampler import History, Sampler  # NumPy and a kernel: not needed to make a configuration

    size = len(logits) if decoder.vocab_size is None else min(decoder.vocab_size, len(logits))
    sampler = Sampler(config, size)
    history = History(prompt, size) if config.penalised else None
    stop_tokens = frozenset(config.stop_tokens)
    chosen: list[Sampled] = []
    position = len(prompt)
    limit = config.max_tokens
    if decoder.context_length is not None:
        limit = min(limit, decoder.context_length - position)
    while True:
        if cancelled is not None and cancelled():
            return _result(chosen, GenerationStopReason.Cancelled, config)
        sampled = sampler.sample(logits, position, history)
        if sampled.id in stop_tokens:
            return _result(chosen, GenerationStopReason.StopToken, config)
        chosen.append(sampled)
        if on_token is not None and on_token(sampled.id) is False:
            return _result(chosen, GenerationStopReason.Cancelled, config)
        if len(chosen) >= limit:
            return _result(chosen, GenerationStopReason.MaxTokens, config)
        try:
            logits = decoder.decode(sampled.id)
        except Cancelled:
            return _result(chosen, GenerationStopReason.Cancelled, config)
        if history is not None:
            history.push(sampled.id)
        position += 1


def _result(
    chosen: list[Sampled], reason: GenerationStopReason, config: GenerationConfig
) -> GenerationResult:
    logprobs = None if config.logprobs is None else chosen
    return GenerationResult([sampled.id for sampled in chosen], reason, logprobs)


_users: dict[int, weakref.ref[_Use]] = {}  # by id() of the decoder


class _Use:
    """Claims a decoder for one loop and gives it the hook; a second claim would mix two sequences.

    Ctrl-C may strike between any two steps, even on the way into ``__exit__``: the claim, and the hook with
    it, therefore end with this object at the latest, which only the loop's frame holds. No lock is taken,
    since that could stay locked.
    """

    def __init__(self, decoder: TokenDecoder, cancelled: Callable[[], bool] | None) -> None:
        self._decoder, self._before = decoder, decoder.cancelled
        self._hook = None if cancelled is None else _while_alive(weakref.ref(self), cancelled)

    def __enter__(self) -> None:
        key, mine = id(self._decoder), weakref.ref(self)
        other = _users.setdefault(key, mine)
        if other is not mine:
            if other() is not None:
                raise SessionBusy(
                    "this decoder is generating already",
                    hint="Generate after the running call has returned, not from its callback.",
                )
            _users[key] = mine
        if self._hook is not None:
            self._decoder.cancelled = self._hook

    def __exit__(self, *exc: object) -> None:
        self._decoder.cancelled = self._before
        _users.pop(id(self._decoder), None)


def _while_alive(use: weakref.ref[_Use], cancelled: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: use() is not None and cancelled()
