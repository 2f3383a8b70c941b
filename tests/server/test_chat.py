"""Chat completions over a real socket: chunk order, usage, choices, logprobs, early errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_server import RunningServer, chat_body, stream_events

TEXT = "alpha beta gamma delta"


def test_a_whole_answer(server: RunningServer) -> None:
    answer = server.chat("chain")
    body = answer.json
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert (
        body["object"] == "chat.completion"
        and body["model"] == "chain"
        and body["id"].startswith("chatcmpl-")
    )
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = body["usage"]
    assert usage["completion_tokens"] == 5 and usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert body["system_fingerprint"].startswith("fp_")


def test_the_chunks_of_a_stream(server: RunningServer) -> None:
    events = server.chat_events("chain", stream_options={"include_usage": True})
    first, *deltas, last, totals = events
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [event["choices"][0]["delta"] for event in deltas] == [
        {"content": piece} for piece in ("alpha ", "be", "ta ga", "mma", " delta")
    ]
    assert all(event["choices"][0]["finish_reason"] is None for event in deltas)
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert totals["choices"] == [] and totals["usage"] == server.chat("chain").json["usage"]
    assert all(event["usage"] is None for event in events[:-1])
    for constant in ("id", "created", "model", "system_fingerprint", "object"):
        assert len({event[constant] for event in events}) == 1
    assert first["object"] == "chat.completion.chunk"


def test_without_include_usage_there_is_no_usage(server: RunningServer) -> None:
    for options in (
        {},
        {"stream_options": None},
        {"stream_options": {}},
        {"stream_options": {"include_usage": False}},
    ):
        events = server.chat_events("chain", **options)
        assert all("usage" not in event and event["choices"] for event in events)


def test_the_headers_of_a_stream(server: RunningServer) -> None:
    headers = server.chat("chain", stream=True).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store" and headers["x-accel-buffering"] == "no"


def test_max_tokens_ends_with_length(server: RunningServer) -> None:
    assert server.both("chain", max_tokens=2) == ("alpha be", "length")
    assert server.both("chain", max_completion_tokens=1, max_tokens=4) == ("alpha ", "length")


def test_several_choices(server: RunningServer) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1.0, "max_tokens": 8, "seed": 1, "top_k": 0}
    choices = server.chat("dice", **fields).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in choices]
    assert len(set(texts)) == 3
    assert texts == [choice["message"]["content"] for choice in server.chat("dice", **fields).json["choices"]]
    events = server.chat_events("dice", **fields)
    assert [event["choices"][0]["delta"].get("role") for event in events[:3]] == ["assistant"] * 3
    streamed = dict.fromkeys(range(3), "")
    ends = []
    for event in events:
        (choice,) = event["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            ends.append(choice["index"])
    assert (list(streamed.values()), ends) == (texts, [0, 1, 2])


def test_the_same_request_gives_the_same_bits(server: RunningServer) -> None:
    fields = {"temperature": 0.9, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}
    for model in ("dice", "tiny"):
        first = server.chat(model, seed=7, **fields).json["choices"]
        assert first == server.chat(model, seed=7, **fields).json["choices"]
        assert first != server.chat(model, seed=8, **fields).json["choices"]


def test_logprobs(server: RunningServer) -> None:
    choice = server.chat("chain", logprobs=True, top_logprobs=2).json["choices"][0]
    content = choice["logprobs"]["content"]
    assert [token["token"] for token in content] == ["alpha ", "be", "ta ga", "mma", " delta"]
    assert bytes(content[0]["bytes"]).decode() == "alpha "
    for token in content:
        assert len(token["top_logprobs"]) == 2 and token["logprob"] <= 0
        assert token["top_logprobs"][0]["token"] == token["token"]
    events = server.chat_events("chain", logprobs=True, top_logprobs=2)
    streamed = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    assert streamed == content
    plain = server.chat("chain", logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in plain] == [[]] * 5


def test_held_back_text_still_carries_its_logprobs(server: RunningServer) -> None:
    events = server.chat_events("chain", logprobs=True, stop=["delta force"])
    tokens = [
        t["token"] for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]
    ]
    assert tokens == ["alpha ", "be", "ta ga", "mma", " delta"]
    assert "".join(c["delta"].get("content", "") for e in events for c in e["choices"]) == TEXT


def test_errors_come_before_the_headers_of_a_stream(server: RunningServer) -> None:
    for body, status in (
        (chat_body("nothing", stream=True), 404), (chat_body("chain", stream=True, temperature=-1), 400),
        (chat_body("chain", stream=True, logit_bias={"99999": 1}), 400),
        (chat_body("chain", "x" * 9000, stream=True), 400),
    ):  # fmt: skip
        answer = server.post("/v1/chat/completions", body)
        assert answer.status == status, answer.body
        assert answer.headers["content-type"] == "application/json" and answer.error["message"]
        assert answer.headers["x-should-retry"] == "false"


def test_without_a_model_name_several_models_are_too_many(server: RunningServer) -> None:
    body = chat_body("chain")
    del body["model"]
    assert server.post("/v1/chat/completions", body).error["param"] == "model"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_paths_work_with_and_without_v1(server: RunningServer, path: str) -> None:
    assert server.post(path, chat_body("chain")).text == TEXT


def test_routes(server: RunningServer) -> None:
    assert server.get("/health").json == {"status": "ok"}
    models = server.get("/v1/models").json
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["chain", "dice", "tiny"]
    one = server.get("/v1/models/chain").json
    assert one in models["data"] and one["object"] == "model" and one["context_length"] == 4096
    assert len(one["sha256"]) == 64
    for path in ("/v1/models/nothing", "/v1/models/a/b", "/v1/models/..%2f..", "/v1/models/%1bX"):
        answer = server.get(path)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            404,
            "model_not_found",
            "model",
        )
    for path in ("/", "/v1", "/v1/nothing", "/v1/models/", "/v1/models/%0d%0aX"):
        assert server.get(path).status == 404
    wrong = server.get("/v1/chat/completions")
    assert (wrong.status, wrong.error["code"]) == (405, "method_not_allowed") and "POST" in wrong.headers[
        "allow"
    ]


def test_raw_framing(server: RunningServer) -> None:
    body = json.dumps(chat_body("chain", stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    raw = server.raw(
        head + b"Content-Type: application/json\r\n" + b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    payload = raw.split(b"\r\n\r\n", 1)[1]
    text = b""
    while payload:  # undo the chunked transfer coding
        size, payload = payload.split(b"\r\n", 1)
        text, payload = text + payload[: int(size, 16)], payload[int(size, 16) + 2 :]
    assert len(stream_events(text)) == 7
