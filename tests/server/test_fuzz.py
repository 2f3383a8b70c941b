"""Whatever a client sends, the answer is 2xx or 4xx with a JSON error, and the next request is right."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rase.server import fields
from tests.support.http_server import RunningServer

words = st.sampled_from(["user", "assistant", "system", "tool", "chain", "text", "Hi", "none"])
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8) | words
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "1"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
small = {"max_tokens": 3, "model": "chain", "n": 1}  # an accepted request is a short one
QUIET = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def check(server: RunningServer, path: str, body: bytes) -> None:
    answer = server.post(path, body, {"Content-Type": "application/json"})
    assert answer.status < 500, (answer.status, body)
    if answer.status >= 400:
        assert answer.error["message"] and answer.error["type"] == "invalid_request_error"


@QUIET
@given(given=st.dictionaries(st.sampled_from(sorted(fields.CHAT)), values, max_size=3), messages=values)
def test_random_chat_requests(server: RunningServer, given: dict[str, Any], messages: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **given, **small}
    check(server, "/v1/chat/completions", json.dumps(body).encode())
    check(server, "/v1/chat/completions", json.dumps({**body, "messages": messages}).encode())
    check(server, "/v1/chat/completions", json.dumps({**body, "messages": [messages]}).encode())
    assert server.chat("chain").text == "alpha beta gamma delta"


@QUIET
@given(given=st.dictionaries(st.sampled_from(sorted(fields.COMPLETION)), values, max_size=3), prompt=values)
def test_random_completion_requests(server: RunningServer, given: dict[str, Any], prompt: Any) -> None:
    check(server, "/v1/completions", json.dumps({"prompt": "Hi", **given, **small}).encode())
    check(server, "/v1/completions", json.dumps({**given, **small, "prompt": prompt}).encode())


@QUIET
@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_damaged_bodies(server: RunningServer, junk: bytes, start: int, cut: int) -> None:
    body = b'{"model":"chain","max_tokens":3,"messages":[{"role":"user","content":"\\ud83d\\ude00 Hi"}]}'
    check(server, "/v1/chat/completions", body[:start] + junk + body[start + cut :])
