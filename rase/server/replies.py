"""Write OpenAI replies: whole answers, stream chunks, model objects. Everything is one line of UTF-8 JSON.

Chunk order of a stream: for each choice one chunk with the role and empty content; the deltas; for each
choice one chunk with an empty delta and the finish reason; with ``stream_options.include_usage`` one chunk
with empty ``choices`` and the usage (all others then carry ``"usage": null``). ``id``, ``created``, ``model``
and ``system_fingerprint`` are the same in all of them.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rase.completion import Choice, Completion, Piece, TokenLogprob
    from rase.registry import ModelManifest
    from rase.session_cache import LoadedModel

__all__ = ["ChatReply", "CompletionReply", "Reply", "encode", "loaded_object", "model_object", "usage"]

_encoder = msgspec.json.Encoder()
# Line separators that JSON may hold as they are, but that some clients split lines at.
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def encode(value: Any) -> bytes:
    """``value`` as JSON on one line, in every client's sense of a line."""
    text = _encoder.encode(value)
    for raw, escaped in _SEPARATORS:
        if raw in text:
            text = text.replace(raw, escaped)  # these bytes occur inside strings only
    return text


def usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """Token counts of a whole request, summed over its prompts."""
    prompt = sum(c.prompt_tokens for c in completions)
    generated = sum(c.completion_tokens for c in completions)
    return {
        "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in completions)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.reasoning_tokens for c in completions for choice in c.choices),
        },
    }  # fmt: skip


def model_object(manifest: ModelManifest) -> dict[str, Any]:
    """The model object of ``/v1/models``: OpenAI's fields, and what a client can use beyond them."""
    try:
        created = int(os.stat(manifest.weights).st_mtime)
    except OSError:
        created = 0  # the file is gone: the model is listed, and refused when it is asked for
    return {
        "id": manifest.id, "object": "model", "created": created, "owned_by": "rase",
        "kind": manifest.kind.value, "architecture": manifest.architecture,
        "context_length": manifest.context_length,
        "max_model_len": manifest.context_length, "sha256": manifest.sha256,
    }  # fmt: skip


def loaded_object(model: LoadedModel) -> dict[str, Any]:
    """One line of ``/v1/ps``; ``expires_at`` null means that the model stays until its memory is needed."""
    times = ("loaded_at", "used_at", "expires_at")
    facts = asdict(model)
    return {**facts, **{name: facts[name] and int(facts[name]) for name in times}, "object": "loaded_model"}


class Reply:
    """The constant part of one reply, and how its parts are written. Subclasses know the two object forms."""

    prefix = ""
    object_whole = ""
    object_chunk = ""

    def __init__(
        self, model: str, fingerprint: str, *, include_usage: bool = False, logprobs: bool = False
    ) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model, self.fingerprint = model, fingerprint
        self.include_usage, self.logprobs = include_usage, logprobs

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model,
                "system_fingerprint": self.fingerprint}  # fmt: skip

    def whole(self, completions: Sequence[Completion], n: int) -> bytes:
        """The reply to a request without ``stream``; the choices of prompt k are numbered from k·n."""
        numbered = [(k * n + choice.index, choice) for k, c in enumerate(completions) for choice in c.choices]
        choices = [self._choice(choice, index) for index, choice in numbered]
        return encode({**self._head(self.object_whole), "choices": choices, "usage": usage(completions)})

    def opening(self, index: int) -> bytes | None:
        """The first chunk of choice ``index``, or None where the form has none."""
        return None

    def delta(self, piece: Piece, index: int) -> bytes | None:
        """The chunk of one piece, or None when there is nothing to say."""
        if not (piece.text or piece.reasoning) and not (self.logprobs and piece.logprobs):
            return None
        return self._chunk([self._delta(piece, index)])

    def closing(self, choice: Choice, index: int) -> bytes:
        """The last chunk of choice ``index``: no text, and why it ended."""
        return self._chunk([self._end(choice, index)])

    def totals(self, completions: Sequence[Completion]) -> bytes:
        """The usage chunk."""
        return encode({**self._head(self.object_chunk), "choices": [], "usage": usage(completions)})

    def _chunk(self, choices: list[dict[str, Any]]) -> bytes:
        chunk = {**self._head(self.object_chunk), "choices": choices}
        if self.include_usage:
            chunk["usage"] = None
        return encode(chunk)

    def _choice(self, choice: Choice, index: int) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, piece: Piece, index: int) -> dict[str, Any]:
        raise NotImplementedError

    def _end(self, choice: Choice, index: int) -> dict[str, Any]:
        raise NotImplementedError


class ChatReply(Reply):
    """``chat.completion`` and its chunks."""

    prefix, object_whole, object_chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, choice: Choice, index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning is not None:
            message |= _reasoning(choice.reasoning)
        return {"index": index, "message": message, "logprobs": self._logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason}  # fmt: skip

    def opening(self, index: int) -> bytes | None:
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _delta(self, piece: Piece, index: int) -> dict[str, Any]:
        delta = _reasoning(piece.reasoning) if piece.reasoning else {}
        if piece.text or not piece.reasoning:
            delta["content"] = piece.text
        return {"index": index, "delta": delta, "logprobs": self._logprobs(piece.logprobs),
                "finish_reason": None}  # fmt: skip

    def _end(self, choice: Choice, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.finish_reason}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = [
            {**_token(t.text, t.logprob), "top_logprobs": [_token(text, value) for _, text, value in t.top]}
            for t in tokens
        ]
        return {"content": content, "refusal": None}


def _reasoning(text: str) -> dict[str, str | None]:
    return {"reasoning_content": text, "reasoning": text}  # clients read one or the other


def _token(text: str, logprob: float) -> dict[str, Any]:
    # Half a character has no text of its own, hence no bytes that a client could join.
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


class CompletionReply(Reply):
    """``text_completion``, whole and in chunks."""

    prefix, object_whole, object_chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, fingerprint: str, **options: bool) -> None:
        super().__init__(model, fingerprint, **options)
        self._offsets: dict[int, int] = {}  # characters of text that each streamed choice has so far

    def _choice(self, choice: Choice, index: int) -> dict[str, Any]:
        return {"index": index, "text": choice.text, "logprobs": self._logprobs(choice.logprobs, 0),
                "finish_reason": choice.finish_reason}  # fmt: skip

    def _delta(self, piece: Piece, index: int) -> dict[str, Any]:
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(len(t.text) for t in piece.logprobs)
        return {"index": index, "text": piece.text, "logprobs": self._logprobs(piece.logprobs, offset),
                "finish_reason": None}  # fmt: skip

    def _end(self, choice: Choice, index: int) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": choice.finish_reason}

    def _logprobs(self, tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "tokens": [t.text for t in tokens], "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [{text: value for _, text, value in t.top} for t in tokens],
            "text_offset": offsets,
        }  # fmt: skip
