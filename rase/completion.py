"""Completion: from messages or a prompt to text, the one pipeline behind HTTP, command line and Python.

``prepare`` does everything that can be refused: it renders, encodes and checks, and computes nothing. ``run``
generates. What ``run`` hands to ``on_piece``, joined, is the text of the choice, byte for byte.

Rules: prompt and answer together fill at most the context. A prompt that leaves no room for one token
(``prompt_tokens >= context_length``) is refused; ``max_tokens`` beyond the room ends with finish reason
``length``. A choice that its callback stops, or that ``cancelled`` stops, has finish reason ``cancelled``.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rase.answers import Choice, Completion, FinishReason, Piece, TokenLogprob
from rase.engine.config import GenerationConfig
from rase.errors import Cancelled, ContextLengthExceeded, InvalidRequest, NoChatTemplate
from rase.text.messages import ChatMessage

if TYPE_CHECKING:
    from rase.session import ModelSession
    from rase.text.thinking import PromptState

__all__ = [
    "MAX_CHOICES", "MAX_STOPS", "MAX_STOP_LENGTH", "ChatMessage", "Choice", "Completion", "GenerationConfig",
    "Piece", "Prepared", "TextRequest", "TokenLogprob", "normalise_stop", "prepare", "run",
]  # fmt: skip

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_LENGTH = 4096  # characters: text is held back by as much while a stop string may still complete

_FINISH: dict[str, FinishReason] = {"MaxTokens": "length", "StopToken": "stop", "Cancelled": "cancelled"}


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What a caller wants: a chat (``messages``) or a raw completion (``prompt``, text or token ids)."""

    messages: Sequence[ChatMessage] | None = None
    prompt: str | Sequence[int] | None = None
    config: GenerationConfig = field(default_factory=GenerationConfig)
    stop: tuple[str, ...] = ()
    n: int = 1
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    split_reasoning: bool = False  # tell what stands in <think> tags from the text


@dataclass(frozen=True)
class Prepared:
    """A request that can run: ids, effective limits, and the stop strings in normal form."""

    ids: list[int]
    config: GenerationConfig  # with the model's end tokens, and max_tokens within the context
    stop: tuple[str, ...]
    n: int
    reasoning: PromptState | None = None  # None: not split from the text


def normalise_stop(value: Any) -> tuple[str, ...]:
    """Return stop strings as a tuple: None and [] are none, a string is one.

    Raises ``InvalidRequest`` for an empty string, another type, more than ``MAX_STOPS``, or one that is
    longer than ``MAX_STOP_LENGTH`` characters.
    """
    if value is None:
        return ()
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)) or not all(isinstance(stop, str) for stop in stops):
        raise _bad("stop", "a string or a list of strings", _short(value))
    if len(stops) > MAX_STOPS:
        raise _bad("stop", f"at most {MAX_STOPS} strings", len(stops))
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise _bad("stop", f"strings of 1 to {MAX_STOP_LENGTH} characters", f"{len(stop)} characters")
    return tuple(dict.fromkeys(stops))


def prepare(session: ModelSession, request: TextRequest) -> Prepared:
    """Render, encode and check ``request``: what the caller can correct is raised here, before any compute.

    Raises ``InvalidRequest`` and its kinds (``ContextLengthExceeded``, ``ChatTemplateError``,
    ``NoChatTemplate``, ``InvalidGenerationConfig``) and ``InsufficientMemory`` for a prompt that the cache
    can never hold.
    """
    n = _count(request.n)
    stop = normalise_stop(request.stop)
    param, ids, prompt_end = _encode(session, request)
    if not ids:
        raise InvalidRequest("the prompt is empty", expected="at least one token", found="none", param=param)
    rows = session.decoder.program.graph.vocab_size
    for id in ids:
        if not 0 <= id < rows:
            raise InvalidRequest("token id", expected=f"0 to {rows - 1}", found=id, param=param)
    room = session.context_length - len(ids)
    if room < 1:
        raise ContextLengthExceeded(len(ids), session.context_length, param=param)
    session.decoder.pool.check_fits(len(ids))
    config = request.config
    if session.decoder.vocab_size is not None:
        config.check_vocab(session.decoder.vocab_size)
    ends = tuple(dict.fromkeys((*config.stop_tokens, *sorted(session.end_tokens))))
    config = replace(config, stop_tokens=ends, max_tokens=min(config.max_tokens, room))
    return Prepared(ids, config, stop, n, _prompt_state(prompt_end) if request.split_reasoning else None)


def run(
    session: ModelSession,
    prepared: Prepared,
    on_piece: Callable[[Piece], object] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Completion:
    """Generate. Waits for the session, evaluates the prompt once and each choice after the other.

    ``on_piece`` is called in this thread for every token; returning False stops its choice. ``cancelled`` is
    asked while waiting, between chunks of the prompt and before each token; when it says True the answer is
    what there is so far. What a callback raises passes through, and the session can be used again at once.

    Raises ``SessionBusy`` for a callback that uses the session that calls it, ``InvalidLogits``,
    ``InsufficientMemory`` and ``BackendError``.
    """
    from rase.engine import generation

    start = time.perf_counter()
    done = Completion([], len(prepared.ids), 0, 0, 0.0, 0.0, 0.0, session.id, session.fingerprint)
    decoder = session.decoder
    try:
        with session.lock(cancelled):
            try:
                before = time.perf_counter()
                decoder.cancelled = cancelled
                logits = decoder.prefill(prepared.ids)
                first = time.perf_counter()
                done.prefill_s, done.ttft_s = first - before, first - start
                for index in range(prepared.n):
                    decoder.truncate(len(prepared.ids))
                    text = _ChoiceText(session, prepared, index, on_piece)
                    result = generation.continue_from(
                        decoder, logits, prepared.ids, prepared.config, choice=index, cancelled=cancelled,
                        on_sampled=text.push)  # fmt: skip
                    done.choices.append(text.finish(result.stop_reason))
                done.decode_s = time.perf_counter() - first
            finally:
                decoder.cancelled = None
                decoder.truncate(0)  # the pages go back at once: an idle session holds no conversation
    except Cancelled:
        pass
    for index in range(len(done.choices), prepared.n):  # cancelled while waiting or inside the prompt
        done.choices.append(Choice(index, "", [], "cancelled", []))
    done.completion_tokens = sum(len(choice.token_ids) for choice in done.choices)
    return done


class _ChoiceText:
    """Turns the tokens of one choice into safe text: whole characters, nothing of a stop string."""

    def __init__(
        self, session: ModelSession, prepared: Prepared, index: int,
        on_piece: Callable[[Piece], object] | None,
    ) -> None:  # fmt: skip
        from rase.text.stream import StopText

        self._tokenizer, self._on_piece = session.tokenizer, on_piece
        self._want_logprobs = prepared.config.logprobs is not None
        self._characters, self._stops = session.tokenizer.stream(), StopText(prepared.stop)
        self._choice = Choice(index, "", [], "stop", [])
        self._split = None if prepared.reasoning is None else _splitter(prepared.reasoning)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._stopped = self._refused = False

    def push(self, sampled: Any) -> bool:
        """Take one token; False ends the choice."""
        logprobs = [self._logprob(sampled)] if self._want_logprobs else []
        self._choice.token_ids.append(sampled.id)
        self._choice.logprobs += logprobs
        text = self._stops.push(self._characters.push(sampled.id))
        self._stopped = self._stops.stopped
        self._emit(text, [sampled.id], logprobs)
        return not (self._stopped or self._refused)

    def finish(self, reason: Any) -> Choice:
        """Emit what was held back and return the choice."""
        if not (self._stopped or self._refused):
            tail = self._stops.push(self._characters.flush())
            self._emit(tail + ("" if self._stops.stopped else self._stops.finish()), [], [])
            self._stopped = self._stops.stopped
        if self._split is not None:
            thoughts, text = self._split.finish()
            self._show(text, thoughts, [], [])
            self._choice.reasoning = "".join(self._thoughts)
        self._choice.finish_reason = "stop" if self._stopped else _FINISH[reason.name]
        self._choice.text = "".join(self._texts)
        return self._choice

    def _emit(self, text: str, ids: list[int], logprobs: list[TokenLogprob]) -> None:
        thoughts = ""
        if self._split is not None:
            thoughts, text = self._split.push(text)
        self._show(text, thoughts, ids, logprobs)

    def _show(self, text: str, thoughts: str, ids: list[int], logprobs: list[TokenLogprob]) -> None:
        if text or thoughts or ids:
            self._texts.append(text)
            self._thoughts.append(thoughts)
            if self._on_piece is not None and not self._refused:
                answer = self._on_piece(Piece(self._choice.index, text, ids, logprobs, thoughts))
                self._refused = answer is False

    def _logprob(self, sampled: Any) -> TokenLogprob:
        piece = self._tokenizer.piece
        top = tuple((id, piece(id), value) for id, value in sampled.top)
        return TokenLogprob(sampled.id, piece(sampled.id), sampled.logprob, top)


def _splitter(state: PromptState) -> Any:
    from rase.text.thinking import ThinkSplitter

    return ThinkSplitter(state)


def _prompt_state(prompt_end: str) -> PromptState:
    from rase.text.thinking import prompt_state

    return prompt_state(prompt_end)


def _encode(session: ModelSession, request: TextRequest) -> tuple[str, list[int], str]:
    """The name of the field that carries the input, its token ids, and the last markup of the prompt.

    Text that cannot fit by far is refused unencoded: encoding megabytes takes seconds and gigabytes.
    """
    if (request.messages is None) == (request.prompt is None):
        raise InvalidRequest("a request", expected="either messages or a prompt", found="both or neither")
    if request.messages is not None:
        if session.chat_template is None:
            raise NoChatTemplate(
                f"model '{session.id}' has no chat template", param="messages",
                hint="Use a raw completion, or register the model with --chat-template.")  # fmt: skip
        kwargs = request.template_kwargs
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise _bad("template_kwargs", "a mapping of names to values", _short(kwargs))
        segments = session.chat_template.render_segments(request.messages, **kwargs)
        _check_length(session, "messages", [part.text for part in segments if part.kind != "markup"])
        return "messages", session.tokenizer.encode_segments(segments), _last_markup(segments)
    if isinstance(request.prompt, str):
        _check_length(session, "prompt", [request.prompt])
        ids = session.tokenizer.encode(request.prompt, add_special_tokens=True)
        return "prompt", ids, request.prompt[-64:]
    try:
        count = len(request.prompt or ())
    except (TypeError, ValueError):  # no list; an array says neither whether it is empty
        raise _bad("prompt", "text or token ids", _short(request.prompt)) from None
    if count >= session.context_length:  # before they are copied
        raise ContextLengthExceeded(count, session.context_length, param="prompt")
    return "prompt", [_id(id) for id in request.prompt or ()], ""


def _last_markup(segments: Sequence[Any]) -> str:
    """What the template wrote behind the last message: a message that ends with a tag says nothing."""
    return segments[-1].text if segments and segments[-1].kind == "markup" else ""


def _check_length(session: ModelSession, param: str, texts: list[str]) -> None:
    """Refuse texts that must give more tokens than the context has, however they are cut."""
    if sum(map(len, texts)) > session.context_length:
        least = session.tokenizer.least_tokens("".join(texts))
        if least > session.context_length:
            raise ContextLengthExceeded(least, session.context_length, param=param, at_least=True)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CHOICES:
        raise _bad("n", f"a whole number from 1 to {MAX_CHOICES}", _short(value))
    return value


def _id(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise _bad("prompt", "text or token ids", _short(value)) from None


def _bad(param: str, expected: str, found: object) -> InvalidRequest:
    return InvalidRequest(param, expected=expected, found=found, param=param)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
