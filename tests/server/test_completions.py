"""Raw completions: prompts of every form, streams, logprobs."""

from __future__ import annotations

from typing import Any

from tests.support.http_server import Answer, RunningServer, stream_events

TEXT = "alpha beta gamma delta"


def ask(server: RunningServer, prompt: Any, **fields: Any) -> Answer:
    return server.post("/v1/completions", {"model": "chain", "prompt": prompt, "temperature": 0, **fields})


def test_a_whole_answer(server: RunningServer) -> None:
    body = ask(server, "Hi").json
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 2 and body["usage"]["completion_tokens"] == 5


def test_token_ids_as_prompt(server: RunningServer) -> None:
    answer = ask(server, [72, 105, 33])
    assert answer.text == TEXT and answer.json["usage"]["prompt_tokens"] == 3
    for bad in ([99999], [-1]):
        assert ask(server, bad).error["param"] == "prompt"


def test_several_prompts_with_several_choices(server: RunningServer) -> None:
    body = ask(server, ["Hi", "you"], n=2).json
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(i, TEXT) for i in range(4)]
    assert body["usage"]["completion_tokens"] == 20 and body["usage"]["prompt_tokens"] == 5
    events = stream_events(ask(server, ["Hi", "you"], n=2, stream=True).body)
    texts = {
        i: "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) for i in range(4)
    }
    assert texts == dict.fromkeys(range(4), TEXT)


def test_an_empty_prompt_is_refused(server: RunningServer) -> None:
    assert ask(server, "").error["param"] == "prompt"


def test_the_chunks_of_a_stream(server: RunningServer) -> None:
    events = stream_events(ask(server, "Hi", stream=True, stream_options={"include_usage": True}).body)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == TEXT
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * 5 + ["stop"]
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 5
    assert {event["object"] for event in events} == {"text_completion"}


def test_logprobs(server: RunningServer) -> None:
    whole = ask(server, "Hi", logprobs=1).json["choices"][0]["logprobs"]
    assert whole["tokens"] == ["alpha ", "be", "ta ga", "mma", " delta"]
    assert whole["text_offset"] == [0, 6, 8, 13, 16] and len(whole["token_logprobs"]) == 5
    assert list(whole["top_logprobs"][0]) == ["alpha "]
    events = stream_events(ask(server, "Hi", logprobs=1, stream=True).body)
    parts = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    for key, values in whole.items():
        assert [value for part in parts for value in part[key]] == values
