"""Turn errors into true HTTP statuses and OpenAI error bodies.

A body is ``{"error": {"message", "type", "param", "code"}}`` and never holds a path, a traceback or a
prompt. What a caller can correct is 4xx. Clients repeat 408, 409, 429 and 5xx by themselves, so everything
that would only fail again carries ``x-should-retry: false``; a full queue is 503 with ``Retry-After``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from rase import errors as e

__all__ = ["Refused", "error_body", "error_response", "status_of"]

MESSAGE_LIMIT = 600  # characters of a message that may quote what the caller sent


class Refused(e.InvalidRequest):
    """A request that the HTTP layer itself refuses, with its own status and code."""

    def __init__(self, status: int, code: str, what: str, *, close: bool = False, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.status, self.code, self.close = status, code, close


@dataclass(frozen=True)
class _Rule:
    status: int
    sentence: str | None = None  # replaces the error's own text, which may name paths
    retry: bool = False


_MODEL = "The model cannot be used as it is registered; `rase model verify` on the server says why."
_SERVER = "The server could not process this request; its log names the cause."
_RULES: dict[type[BaseException], _Rule] = {
    e.InvalidRequest: _Rule(400),
    e.InvalidModelId: _Rule(404),
    e.ModelNotFound: _Rule(404),
    e.TokenizerError: _Rule(422, _MODEL),
    e.ModelFileNotFound: _Rule(422, _MODEL),
    e.IntegrityMismatch: _Rule(422, "A file of the model changed since it was registered; it is not used. "
                                    "`rase model verify` on the server names the file."),
    e.CorruptModelFile: _Rule(422, _MODEL),
    e.ManifestError: _Rule(422, _MODEL),
    e.UnsupportedFormat: _Rule(422, _MODEL),
    e.UnsupportedArchitecture: _Rule(422, _MODEL),
    e.InsufficientMemory: _Rule(507),  # its text is numbers only
    e.BackendUnavailable: _Rule(501, "The device that the server was started with is not available."),
    e.InvalidLogits: _Rule(500, "The model produced NaN or infinity; no token may be chosen from that."),
    e.ServerBusy: _Rule(503, retry=True),
    e.SessionBusy: _Rule(503, "The model is in use by the process that hosts this server.", retry=True),
    e.StoreLocked: _Rule(503, "Another process holds the lock of the model store.", retry=True),
    e.ReplicaLost: _Rule(503, "The process that computed this request is gone. Another one answers the same: "
                              "send it again.", retry=True),
    e.DeadlineExceeded: _Rule(504, "The request did not end before its deadline."),
    e.EngineError: _Rule(500, _SERVER),
    BaseException: _Rule(500, _SERVER),
}  # fmt: skip


def _rule(error: BaseException) -> _Rule:
    return next(_RULES[kind] for kind in type(error).__mro__ if kind in _RULES)


def status_of(error: BaseException) -> int:
    """The HTTP status of ``error``."""
    return error.status if isinstance(error, Refused) else _rule(error).status


def _code(error: BaseException) -> str:
    if isinstance(error, (e.ModelNotFound, e.InvalidModelId)):
        return "model_not_found"
    return error.code if isinstance(error, e.EngineError) else "internal_error"


def _text(error: BaseException) -> str:
    if isinstance(error, (e.ModelNotFound, e.InvalidModelId)):
        return "There is no model with this id; GET /v1/models lists the models of this server."
    sentence = _rule(error).sentence
    if sentence is not None:
        return sentence
    text = str(error)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def error_body(error: BaseException) -> bytes:
    """The OpenAI error object for ``error`` as one line of JSON (UTF-8 bytes)."""
    param = getattr(error, "param", None)
    if param is None and isinstance(error, (e.ModelNotFound, e.InvalidModelId)):
        param = "model"
    kind = "invalid_request_error" if status_of(error) < 500 else "server_error"
    # A lone surrogate from a caller's text could not be encoded: replace it instead of failing twice.
    message = _text(error).encode("utf-8", "replace").decode("utf-8")
    body = {"message": message, "type": kind, "param": param, "code": _code(error)}
    return msgspec.json.encode({"error": body})


def error_response(error: BaseException) -> Response:
    """The whole response for ``error``: status, body and the headers that stop useless retries."""
    headers: dict[str, str] = {}
    if _rule(error).retry:
        headers["retry-after"] = str(max(1, math.ceil(getattr(error, "retry_after", 1.0))))
    else:
        headers["x-should-retry"] = "false"
    if isinstance(error, Refused):
        if error.close:
            headers["connection"] = "close"
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        if "allow" in error.data:
            headers["allow"] = error.data["allow"]
    return Response(error_body(error), status_of(error), headers, media_type="application/json")
