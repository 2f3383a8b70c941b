"""SEC-3: what a client sends cannot forge a log line, and prompts, answers and keys are not logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, wait_until

EVIL = [
    "a\r\nFORGED ok",
    "\x1b[2J\x1b]0;title\x07",
    "x" * 1_000_000,
    "a\u2028FORGED\u0085FORGED",
    "\u202eevil",
    'q"\\',
]
SECRET = "my secret words"


def models(folder: Path) -> dict[str, Path]:
    words = toys.toy_bpe(pieces=["\r\nFORGED by a token", "answer-words"])
    return {"chain": toys.chain(folder, ["\r\nFORGED by a token", "answer-words"], tokenizer=words)}


@pytest.fixture(scope="module")
def server(serve: Any) -> RunningServer:
    return serve(models)


def check(server: RunningServer) -> None:
    """Every record is one printable line of bounded length that starts as ours do."""
    mark = f"mark-{len(server.log)}"  # the line of a request is written just after its answer
    server.get("/health", {"User-Agent": mark})
    wait_until(lambda: any(mark in line for line in server.log))
    for line in server.log:
        assert line.isprintable() and len(line) < 600, line[:700]
        assert not line.lstrip().startswith("FORGED")
        assert SECRET not in line and "sk-very-secret" not in line and "answer-words" not in line


@pytest.mark.parametrize("value", EVIL)
def test_sec_3_in_the_model_name(server: RunningServer, value: str) -> None:
    answer = server.post("/v1/chat/completions", chat_body(value, SECRET), {
        "Content-Type": "application/json", "Authorization": "Bearer sk-very-secret",
        "x-api-key": "sk-very-secret",
    })  # fmt: skip
    assert answer.status == 404 and answer.error["code"] == "model_not_found" and len(answer.body) < 2000
    check(server)


@pytest.mark.parametrize(
    "path", ["/v1/models/a%0d%0aFORGED%20ok", "/%1b[2J", "/" + "x" * 60_000, "/a%e2%80%a8FORGED"]
)
def test_sec_3_in_the_path(server: RunningServer, path: str) -> None:
    assert server.get(path).status == 404
    check(server)


def test_sec_3_in_headers(server: RunningServer) -> None:
    agent = "agent\x1b[2J" + "y" * 5000 + " \xe9\x85FORGED"
    raw = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nUser-Agent: %b\r\n\r\n"
    server.raw(raw % agent.encode("latin-1"))
    server.raw(raw % b"Mozilla FORGED \xff\xfe")
    check(server)


def test_sec_3_in_field_names_and_values(server: RunningServer) -> None:
    for value in EVIL:
        fields = {f"unknown{value[:50]}": SECRET, "user": value, "temperature": 0}
        server.chat("chain", SECRET, **fields)
        server.chat("chain", SECRET, stop=value)
        server.chat("chain", SECRET, seed=value)
        server.post(
            "/v1/chat/completions", {"model": "chain", "messages": [{"role": value, "content": SECRET}]}
        )
    check(server)


def test_sec_3_in_the_text_of_tokens(server: RunningServer) -> None:
    assert server.both("chain", SECRET) == ("\r\nFORGED by a tokenanswer-words", "stop")
    server.chat("chain", SECRET, logprobs=True, top_logprobs=2)
    server.post("/v1/completions", {"model": "chain", "prompt": SECRET, "temperature": 0})
    check(server)


def test_sec_3_error_bodies_are_one_json_object(server: RunningServer) -> None:
    for value in EVIL:
        for body in (
            {"model": value},
            {"model": "chain", "messages": value},
            {"model": "chain", "prompt": 1, "x": value},
        ):
            answer = server.post("/v1/completions", body)
            assert 400 <= answer.status < 500
            assert set(json.loads(answer.body.decode("utf-8"))["error"]) == {
                "message",
                "type",
                "param",
                "code",
            }
            assert b"\n" not in answer.body and b"Traceback" not in answer.body
