"""``GenerationConfig``: what a caller may ask of a generation, checked when it is made.

Nothing is clamped or rounded in silence: a value out of its range raises ``InvalidGenerationConfig`` that
names the field. ``rase.engine.sampler`` documents what each sampling field does and in which order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rase.errors import InvalidGenerationConfig

__all__ = ["MAX_LOGPROBS", "GenerationConfig"]

FLOAT32_MAX = 3.4028234663852886e38
MAX_LOGPROBS = 20  # alternatives listed per token: OpenAI's limit for chat


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Sampling parameters and limits of one generation.

    ====================  ====================================  ======================================
    field                 range                                 meaning
    ====================  ====================================  ======================================
    max_tokens            whole number >= 1                     tokens to generate at most
    temperature           0 .. largest float32                  0 is greedy; float32 semantics
    top_k                 whole number >= 0, or None            0 and None are off; 1 is greedy
    seed                  0 .. 2**64 - 1                        same seed, same output
    stop_tokens           token ids                             end the generation, never emitted
    top_p                 0 .. 1                                1 is off; 0 keeps the best token
    min_p                 0 .. 1                                0 is off
    repetition_penalty    above 0, finite                       1 is off; over prompt and answer
    presence_penalty      -2 .. 2                               over the answer
    frequency_penalty     -2 .. 2                               over the answer, per occurrence
    logit_bias            token id -> -100 .. 100               added to the logit
    logprobs              None, or 0 .. 20                      alternatives listed with each token
    ====================  ====================================  ======================================

    Raises ``InvalidGenerationConfig`` (``param`` names the field). True and False are not numbers here.
    """

    max_tokens: int = 256
    temperature: float = 0.7
    top_k: int | None = 40
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self._set("max_tokens", _whole("max_tokens", self.max_tokens, 1, None))
        self._set("temperature", _number("temperature", self.temperature, 0.0, FLOAT32_MAX))
        if self.top_k is not None:
            self._set("top_k", _whole("top_k", self.top_k, 0, None))
        self._set("seed", _whole("seed", self.seed, 0, 2**64 - 1))
        self._set("stop_tokens", _ids("stop_tokens", self.stop_tokens))
        self._set("top_p", _number("top_p", self.top_p, 0.0, 1.0))
        self._set("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        penalty = _number("repetition_penalty", self.repetition_penalty, 0.0, FLOAT32_MAX)
        if penalty == 0.0:
            _refuse("repetition_penalty", "a number above 0", self.repetition_penalty)
        self._set("repetition_penalty", penalty)
        self._set("presence_penalty", _number("presence_penalty", self.presence_penalty, -2.0, 2.0))
        self._set("frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
        self._set("logit_bias", _bias(self.logit_bias))
        if self.logprobs is not None:
            self._set("logprobs", _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the frozen dataclass stores the normal form of each value

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken without chance."""
        return self.top_k == 1 or self.temperature <= 2.0**-150  # that and less is 0 in float32

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the logits: without, nobody needs to count them."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check_vocab(self, vocab_size: int) -> None:
        """Raise ``InvalidGenerationConfig`` when ``logit_bias`` names an id that the model does not have."""
        for token in self.logit_bias:
            if token >= vocab_size:
                _refuse("logit_bias", f"token ids below {vocab_size}", token)


def _refuse(param: str, expected: str, found: object) -> NoReturn:
    text = repr(found)
    raise InvalidGenerationConfig(
        param, param=param, expected=expected, found=text if len(text) <= 60 else text[:57] + "..."
    )


def _whole(param: str, value: Any, low: int, high: int | None) -> int:
    """``value`` as an int in low..high; bool and float are refused, NumPy integers are not."""
    expected = (
        f"a whole number from {low} to {high}" if high is not None else f"a whole number, at least {low}"
    )
    if isinstance(value, bool):
        _refuse(param, expected, value)
    try:
        number = operator.index(value)
    except TypeError:
        _refuse(param, expected, value)
    if number < low or (high is not None and number > high):
        _refuse(param, expected, number)
    return number


def _number(param: str, value: Any, low: float, high: float) -> float:
    """``value`` as a finite float in low..high; bool, text and complex numbers are refused."""
    expected = f"a number from {low:g} to {high:g}"
    if isinstance(value, (bool, str, bytes)):
        _refuse(param, expected, value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        _refuse(param, expected, value)
    if not math.isfinite(number) or not low <= number <= high:
        _refuse(param, expected, value)
    return number + 0.0  # no negative zero


def _ids(param: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        _refuse(param, "a list of token ids", value)
    try:
        tokens = iter(value)
    except TypeError:  # an array without dimensions has __iter__, too
        _refuse(param, "a list of token ids", value)
    return tuple(_whole(param, token, 0, 2**31 - 1) for token in tokens)


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        _refuse("logit_bias", "a mapping of token ids to numbers", value)
    return {
        _whole("logit_bias", token, 0, 2**31 - 1): _number("logit_bias", bias, -100.0, 100.0)
        for token, bias in value.items()
    }
