"""``Running``: a generation under way on a model's scheduler, from token ids to pieces of safe text.

The text of a choice is made on the driver thread as its tokens come: whole characters, nothing of a stop
string, and a stop string ends the choice at the very token that completes it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rase.answers import Choice, Completion, FinishReason, Piece, TokenLogprob
from rase.engine.request import Request
from rase.text.thinking import ThinkSplitter

if TYPE_CHECKING:
    from rase.completion import Prepared
    from rase.session import ModelSession

__all__ = ["Running", "start"]

_FINISH: dict[str, FinishReason] = {"MaxTokens": "length", "StopToken": "stop", "Cancelled": "cancelled"}


class Running:
    """One generation. It holds its session; dropping the object cancels the work.

    ``done`` says whether it has ended; then ``error`` is what ended it, or ``completion`` the result.
    """

    def __init__(self, session: ModelSession, request: Request, texts: _Texts) -> None:
        self.session, self.request, self._texts = session, request, texts
        self.reading = False  # its owner still handles what came, whether or not more will come
        weakref.finalize(self, request.cancel).atexit = False
        session.generations.add(self)

    @property
    def done(self) -> bool:
        """Whether the generation has ended."""
        return self._texts.done

    @property
    def active(self) -> bool:
        """Whether it needs its model: it waits, runs or is being read. Not while its end is being told: who
        hears of it may load another model at once.
        """
        return self.reading or not self.request.ended

    @property
    def error(self) -> BaseException | None:
        """What ended the generation, if it did not end well."""
        return self.request.error

    @property
    def completion(self) -> Completion | None:
        """The result, once the generation has ended without an error."""
        return self._texts.completion if self.done and self.error is None else None

    def cancel(self) -> None:
        """Stop at the next step; what there is so far is the result. From any thread."""
        self.request.cancel()

    def result(self) -> Completion:
        """Wait for the end and return the result, or raise the error."""
        self.request.wait()
        if self.request.error is not None:
            raise self.request.error
        return self._texts.completion


def start(
    session: ModelSession,
    prepared: Prepared,
    on_piece: Callable[[Piece], object] | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_done: Callable[[Running | None], object] | None = None,
    *,
    deadline: float | None = None,
    priority: int = 0,
    ahead: Callable[[], bool] | None = None,
) -> Running:
    """Begin a generation and return at once.

    ``on_piece`` gets every token of every choice, and ends a choice by returning False; ``on_done`` gets the
    ended ``Running``, or None when its owner has dropped it. These, ``cancelled`` and ``ahead`` run on the
    driver thread: they must be quick and may not use the model. ``deadline`` is of ``time.monotonic()``.

    Raises what ``Scheduler.submit`` raises; later errors are those of ``Running.result``.
    """
    texts = _Texts(session, prepared, on_piece)
    request = Request(
        prepared.ids, prepared.config, n=prepared.n, deadline=deadline, priority=priority, ahead=ahead,
        cancelled=cancelled, on_token=texts.push, on_choice=texts.end, drafts=session.drafts,
    )  # fmt: skip
    running = Running(session, request, texts)
    owner, model = weakref.ref(running), weakref.ref(session)

    def finish() -> None:
        texts.finish(request)
        if (loaded := model()) is not None:
            loaded.used_at = time.monotonic()
        if on_done is not None:
            on_done(owner())

    request.on_done = finish
    session.scheduler.submit(request)
    return running


class _Texts:
    """What a generation has brought so far. It does not know its ``Running``: that one can be dropped."""

    def __init__(
        self, session: ModelSession, prepared: Prepared, on_piece: Callable[[Piece], object] | None
    ) -> None:
        self.done = False
        self.completion = Completion(
            [], len(prepared.ids), 0, 0, 0.0, 0.0, 0.0, session.id, session.fingerprint
        )
        self._choices = [_ChoiceText(session, prepared, index, on_piece) for index in range(prepared.n)]

    def push(self, choice: int, sampled: Any) -> bool:
        """Take one token; False ends the choice."""
        return self._choices[choice].push(sampled)

    def end(self, choice: int, reason: Any) -> None:
        """A choice has ended."""
        self._choices[choice].finish(reason)

    def finish(self, request: Request) -> None:
        """All of it has ended."""
        done = self.completion
        done.choices = [text.choice for text in self._choices]
        done.completion_tokens = sum(len(choice.token_ids) for choice in done.choices)
        done.cached_tokens = request.cached_tokens
        done.ttft_s, done.prefill_s, done.decode_s = request.ttft_s, request.prompt_s, request.decode_s
        self.done = True


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
        self.choice = Choice(index, "", [], "cancelled", [])
        self._split = None if prepared.reasoning is None else ThinkSplitter(prepared.reasoning)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._stopped = self._refused = False

    def push(self, sampled: Any) -> bool:
        """Take one token; False ends the choice."""
        logprobs = [self._logprob(sampled)] if self._want_logprobs else []
        self.choice.token_ids.append(sampled.id)
        self.choice.logprobs += logprobs
        text = self._stops.push(self._characters.push(sampled.id))
        self._stopped = self._stops.stopped
        self._emit(text, [sampled.id], logprobs)
        return not (self._stopped or self._refused)

    def finish(self, reason: Any) -> None:
        """Emit what was held back; the choice is complete."""
        if not (self._stopped or self._refused):
            tail = self._stops.push(self._characters.flush())
            self._emit(tail + ("" if self._stops.stopped else self._stops.finish()), [], [])
            self._stopped = self._stops.stopped
        if self._split is not None:
            thoughts, text = self._split.finish()
            self._show(text, thoughts, [], [])
            self.choice.reasoning = "".join(self._thoughts)
            self.choice.reasoning_tokens *= bool(self.choice.reasoning)
        self.choice.finish_reason = "stop" if self._stopped else _FINISH[reason.name]
        self.choice.text = "".join(self._texts)

    def _emit(self, text: str, ids: list[int], logprobs: list[TokenLogprob]) -> None:
        thoughts = ""
        if self._split is not None:
            self.choice.reasoning_tokens += 0 if self._split.over else len(ids)
            thoughts, text = self._split.push(text)
        self._show(text, thoughts, ids, logprobs)

    def _show(self, text: str, thoughts: str, ids: list[int], logprobs: list[TokenLogprob]) -> None:
        if text or thoughts or ids:
            self._texts.append(text)
            self._thoughts.append(thoughts)
            if self._on_piece is not None and not self._refused:
                answer = self._on_piece(Piece(self.choice.index, text, ids, logprobs, thoughts))
                self._refused = answer is False

    def _logprob(self, sampled: Any) -> TokenLogprob:
        piece = self._tokenizer.piece
        top = tuple((id, piece(id), value) for id, value in sampled.top)
        return TokenLogprob(sampled.id, piece(sampled.id), sampled.logprob, top)
