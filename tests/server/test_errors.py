"""Errors: true statuses, OpenAI's body, no path or text of a stranger's error, and no useless retries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rase import errors as e
from rase.server.errors import Refused, error_response

SECRET = "/home/somebody/models/secret.gguf"


def classes(root: type = e.EngineError) -> list[type]:
    return [root] + [found for child in root.__subclasses__() for found in classes(child)]


def make(kind: Any) -> Any:
    special = {
        "ContextLengthExceeded": lambda: kind(200, 64, param="messages"),
        "IntegrityMismatch": lambda: kind("m", "a" * 64, "b" * 64, path=SECRET),
        "InsufficientMemory": lambda: kind("the model", needed=10, available=5),
    }
    return special.get(kind.__name__, lambda: kind("what happened", found="this"))()


STATUS = {
    "ModelNotFound": 404, "InvalidModelId": 404, "ModelFileNotFound": 422, "UnsupportedFormat": 422,
    "UnsupportedArchitecture": 422, "CorruptModelFile": 422, "ManifestError": 422, "IntegrityMismatch": 422,
    "TokenizerError": 422, "InsufficientMemory": 507, "BackendUnavailable": 501, "ServerBusy": 503,
    "SessionBusy": 503, "ReplicaLost": 503, "StoreLocked": 503, "DeadlineExceeded": 504,
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in classes() if kind.__module__ == "rase.errors"])
def test_status_and_body_of_every_error(kind: Any) -> None:
    response = error_response(make(kind))
    expected = STATUS.get(kind.__name__, 400 if issubclass(kind, e.InvalidRequest) else 500)
    assert response.status_code == expected
    error = json.loads(bytes(response.body))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["code"]
    assert error["type"] == ("invalid_request_error" if expected < 500 else "server_error")
    if kind.__name__ in ("ReplicaLost", "ServerBusy", "SessionBusy", "StoreLocked"):
        assert int(response.headers["retry-after"]) >= 1 and "x-should-retry" not in response.headers
    else:
        assert response.headers["x-should-retry"] == "false" and "retry-after" not in response.headers


@pytest.mark.parametrize("kind", [
    kind for kind in classes()
    if kind.__module__ == "rase.errors" and kind is not e.IntegrityMismatch
    and not issubclass(kind, (e.InvalidRequest, e.InsufficientMemory, e.ServerBusy))
])  # fmt: skip
def test_server_side_errors_keep_paths_to_themselves(kind: Any) -> None:
    body = bytes(error_response(kind(f"cannot read {SECRET}", found=SECRET)).body)
    assert b"somebody" not in body


def test_integrity_mismatch_names_no_path() -> None:
    assert b"somebody" not in bytes(error_response(make(e.IntegrityMismatch)).body)


def test_an_unexpected_error_says_nothing_of_itself() -> None:
    response = error_response(RuntimeError(f"the prompt was: my secret at {SECRET}"))
    assert response.status_code == 500
    assert b"secret" not in bytes(response.body) and b"RuntimeError" not in bytes(response.body)


def test_context_length_names_both_numbers() -> None:
    error = json.loads(bytes(error_response(e.ContextLengthExceeded(200, 64, param="messages")).body))[
        "error"
    ]
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
    assert "200" in error["message"] and "64" in error["message"]


def test_messages_are_cut_and_always_utf8() -> None:
    body = bytes(error_response(e.InvalidRequest("x" * 100_000)).body)
    assert len(body) < 1000
    assert json.loads(bytes(error_response(e.InvalidRequest("bad \ud83d half")).body).decode("utf-8"))


def test_refused_carries_status_code_and_headers() -> None:
    response = error_response(Refused(408, "request_timeout", "slow", close=True))
    assert (response.status_code, response.headers["connection"]) == (408, "close")
    assert response.headers["x-should-retry"] == "false"  # clients repeat 408 by themselves
    assert error_response(Refused(405, "method", "x", allow="GET")).headers["allow"] == "GET"
