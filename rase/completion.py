"""Completion: from messages or a prompt to text, the one pipeline behind HTTP, command line and Python.

``prepare`` does everything that can be refused: it renders, encodes and checks, and computes nothing. ``run``
generates and waits, ``start`` generates and does not. What they hand to ``on_piece``, joined by choice, is
the text of the choice, byte for byte.

Rules: prompt and answer together fill at most the context. A prompt that leaves no room for one token
(``prompt_tokens >= context_length``) is refused; ``max_tokens`` beyond the room ends with finish reason
``length``. A choice that its callback stops, or that ``cancelled`` stops, has finish reason ``cancelled``.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rase.answers import Choice, Completion, Piece, TokenLogprob
from rase.engine.config import GenerationConfig
from rase.errors import ContextLengthExceeded, InvalidRequest, NoChatTemplate
from rase.running import Running, start
from rase.text.messages import ChatMessage
from rase.text.thinking import PromptState, prompt_state

if TYPE_CHECKING:
    from rase.session import ModelSession

__all__ = [
    "MAX_CHOICES", "MAX_STOPS", "MAX_STOP_LENGTH", "ChatMessage", "Choice", "Completion", "GenerationConfig",
    "Piece", "Prepared", "Running", "TextRequest", "TokenLogprob", "normalise_stop", "prepare", "run",
    "start",
]  # fmt: skip

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_LENGTH = 4096  # characters: text is held back by as much while a stop string may still complete


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What a caller wants: a chat (``messages``) or a raw completion (``prompt``, text or token ids)."""

    messages: Sequence[ChatMessage] | None = None
    prompt: str | Sequence[int] | None = None
    config: GenerationConfig = field(default_factory=GenerationConfig)
    stop: tuple[str, ...] = ()
    n: int = 1
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template_hints: Mapping[str, Any] = field(
        default_factory=dict
    )  # as these, but built-in templates ignore them
    split_reasoning: bool = False  # tell what stands in <think> tags from the text
    ignore_eos: bool = False  # go on behind the model's own end tokens


@dataclass(frozen=True)
class Prepared:
    """A request that can run: ids, effective limits, and the stop strings in normal form."""

    ids: list[int]
    config: GenerationConfig  # with the model's end tokens, and max_tokens within the context
    stop: tuple[str, ...]
    n: int
    reasoning: PromptState | None = None  # what the prompt says of it; None: not told from the text


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
    if not isinstance(request.split_reasoning, bool):
        raise _bad("split_reasoning", "true or false", _short(request.split_reasoning))
    param, ids, prompt_end = _encode(session, request)
    if not ids:
        raise InvalidRequest("the prompt is empty", expected="at least one token", found="none", param=param)
    rows = session.scheduler.program.graph.vocab_size
    for id in ids:
        if not 0 <= id < rows:
            raise InvalidRequest("token id", expected=f"0 to {rows - 1}", found=id, param=param)
    room = session.context_length - len(ids)
    if room < 1:
        raise ContextLengthExceeded(len(ids), session.context_length, param=param)
    session.scheduler.pool.check_fits(len(ids) + 1)
    config = request.config
    config.check_vocab(session.scheduler.vocab_size)
    own = () if request.ignore_eos else sorted(session.end_tokens)
    ends = tuple(dict.fromkeys((*config.stop_tokens, *own)))
    config = replace(config, stop_tokens=ends, max_tokens=min(config.max_tokens, room))
    return Prepared(ids, config, stop, n, prompt_state(prompt_end) if request.split_reasoning else None)


def run(
    session: ModelSession,
    prepared: Prepared,
    on_piece: Callable[[Piece], object] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Completion:
    """Generate, together with whatever else the session computes, and wait for the end.

    ``on_piece`` is called in this thread for every token of every choice; returning False stops its choice.
    The model goes on meanwhile, a few tokens ahead. ``cancelled`` is asked in this thread before the start,
    before each step while there is nothing to hand over, and before each piece; when it says True the answer
    is what was handed over. What a callback raises passes through, and ends the generation.

    Raises what ``Scheduler.submit`` raises, ``InvalidLogits``, ``InsufficientMemory`` and ``BackendError``.
    """
    if cancelled is not None and cancelled():
        return _nothing(session, prepared)
    if on_piece is None and cancelled is None:
        return start(session, prepared).result()
    reader = _Reader(prepared.n, on_piece, cancelled)
    running = start(
        session, prepared, reader.push, reader.tick if cancelled is not None else None, reader.done,
        ahead=reader.ahead if on_piece is not None else None,
    )  # fmt: skip
    running.reading = True  # the model stays loaded until the last piece is handed over
    try:
        reader.read(running)
    finally:
        running.cancel()
        running.reading = False
        session.used_at = time.monotonic()
    return reader.cut(running.result())


class _Reader:
    """Brings pieces from the driver to the thread that waits for them, and answers of its callbacks back."""

    AHEAD = 8  # pieces that the model may be ahead of a callback

    def __init__(
        self, n: int, on_piece: Callable[[Piece], object] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        self._events: SimpleQueue[Piece | str] = SimpleQueue()
        self._on_piece, self._cancelled = on_piece, cancelled
        self._seen: list[list[Piece]] = [[] for _ in range(n)]
        self._stopped = [False] * n  # by the callback, or with all by the hook

    # On the driver

    def push(self, piece: Piece) -> bool:
        """Hand one piece over; False ends its choice."""
        self._events.put(piece)
        return not self._stopped[piece.index]

    def tick(self) -> bool:
        """A step begins: let the reader ask its hook. Never cancels by itself."""
        if self._events.empty():
            self._events.put("step")
        return False

    def ahead(self) -> bool:
        """Whether the reader is too far behind."""
        return self._events.qsize() > self.AHEAD

    def done(self, running: object) -> None:
        """No more will come."""
        self._events.put("done")

    # In the thread that waits

    def read(self, running: Running) -> None:
        """Call the callbacks until the generation ends or they end it."""
        while (event := self._events.get()) != "done":
            if self._cancelled is not None and self._cancelled():
                self._stopped = [True] * len(self._stopped)
                return
            if isinstance(event, Piece) and not self._stopped[event.index]:
                self._seen[event.index].append(event)
                if self._on_piece is not None and self._on_piece(event) is False:
                    self._stopped[event.index] = True
            if self._events.qsize() == self.AHEAD // 2:
                running.request.wake()

    def cut(self, done: Completion) -> Completion:
        """The completion without what was made after a choice was stopped."""
        for index, choice in enumerate(done.choices):
            if self._stopped[index]:
                seen = self._seen[index]
                choice.text = "".join(piece.text for piece in seen)
                if choice.reasoning is not None:
                    choice.reasoning = "".join(piece.reasoning for piece in seen)
                choice.token_ids = [id for piece in seen for id in piece.token_ids]
                choice.logprobs = [entry for piece in seen for entry in piece.logprobs]
                choice.finish_reason = "cancelled"
        done.completion_tokens = sum(len(choice.token_ids) for choice in done.choices)
        return done


def _nothing(session: ModelSession, prepared: Prepared) -> Completion:
    """The completion of a request that was cancelled before it began."""
    choices = [Choice(index, "", [], "cancelled", []) for index in range(prepared.n)]
    return Completion(choices, len(prepared.ids), 0, 0, 0.0, 0.0, 0.0, session.id, session.fingerprint)


def _encode(session: ModelSession, request: TextRequest) -> tuple[str, list[int], str]:
    """The name of the field that carries the input, its token ids, and what the prompt's markup ends with.

    Text that cannot fit by far is refused unencoded: encoding megabytes takes seconds and gigabytes.
    """
    if (request.messages is None) == (request.prompt is None):
        raise InvalidRequest("a request", expected="either messages or a prompt", found="both or neither")
    if request.messages is not None:
        if session.chat_template is None:
            raise NoChatTemplate(
                f"model '{session.id}' has no chat template", param="messages",
                hint="Let it continue a text (complete, /v1/completions, rase run --raw), "
                "or register it with --chat-template.")  # fmt: skip
        kwargs = request.template_kwargs
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise _bad("template_kwargs", "a mapping of names to values", _short(kwargs))
        hints = {} if session.chat_template.source is None else request.template_hints
        segments = session.chat_template.render_segments(request.messages, **{**hints, **kwargs})
        _check_length(session, "messages", [part.text for part in segments if part.kind != "markup"])
        # A message that ends with a tag says nothing: only what the template wrote behind it counts.
        last = segments[-1].text if segments and segments[-1].kind == "markup" else ""
        return "messages", session.tokenizer.encode_segments(segments), last
    if isinstance(request.prompt, str):
        _check_length(session, "prompt", [request.prompt])
        return "prompt", session.tokenizer.encode(request.prompt, add_special_tokens=True), request.prompt
    try:
        count = len(request.prompt or ())
    except (TypeError, ValueError):  # no list; an array says neither whether it is empty
        raise _bad("prompt", "text or token ids", _short(request.prompt)) from None
    if count >= session.context_length:  # before they are copied
        raise ContextLengthExceeded(count, session.context_length, param="prompt")
    return "prompt", [_id(id) for id in request.prompt or ()], ""


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
