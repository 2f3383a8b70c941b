"""THK-1 over a real socket: reasoning apart from content, in a stream and out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.http_server import RunningServer
from tests.support.toy_tokenizers import CHATML

# name: (pieces, reasoning, content); the last one is cut by max_tokens
ANSWERS = {
    "empty": (["<think>", "</think>", "hi"], "", "hi"),
    "blank": (["<thi", "nk>\n\n<", "/think>\n", "\nhi"], "", "hi"),
    "half": (["x", "</think>h", "i"], "x", "hi"),
    "twice": (["</thi", "nk></think", ">", "hi"], "", "hi"),
    "cut": (["<think>", "ab", "c", "d"], "abc", ""),
}
COUNTS = {"empty": 0, "blank": 0, "half": 2, "twice": 0, "cut": 3}
EFFORT = (
    "{{ raise_exception('effort ' ~ reasoning_effort ~ enable_thinking) if reasoning_effort is defined }}"
)


def models(folder: Path) -> dict[str, Path]:
    built = toys.chain(folder, ["y"], tokenizer=toys.toy_bpe(pieces=["y"]), name="built", chat_template=None)
    tells = toys.chain(
        folder, ["y"], tokenizer=toys.toy_bpe(pieces=["y"]), name="tells", chat_template=EFFORT + CHATML
    )
    return {"built": built, "tells": tells} | {
        name: toys.chain(folder, pieces, tokenizer=toys.toy_bpe(pieces=pieces), name=name)
        for name, (pieces, _, _) in ANSWERS.items()
    }


@pytest.fixture(scope="module")
def server(serve: Any) -> RunningServer:
    return serve(models)


@pytest.mark.parametrize("name", ANSWERS)
def test_thk_1_over_http(server: RunningServer, name: str) -> None:
    pieces, reasoning, content = ANSWERS[name]
    fields = {"max_tokens": 3 if name == "cut" else 64}
    finish = "length" if name == "cut" else "stop"
    reply = server.chat(name, reasoning_format="deepseek", **fields).json
    answer = reply["choices"][0]
    message = answer["message"]
    assert (message["reasoning_content"], message["content"]) == (reasoning, content)
    assert message["reasoning"] == reasoning and answer["finish_reason"] == finish
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == (COUNTS[name])
    events = server.chat_events(name, reasoning_format="auto", **fields)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == reasoning
    assert "".join(delta.get("content", "") for delta in deltas) == content
    for options in ({}, {"reasoning_format": "none"}):
        text, end = server.both(name, **options, **fields)
        assert (text, end) == ("".join(pieces[: fields["max_tokens"]]), finish), "off: passed on as it is"
        assert "reasoning_content" not in server.chat(name, **options, **fields).json["choices"][0]["message"]


def test_an_unknown_way_to_split_is_refused(server: RunningServer) -> None:
    answer = server.chat("half", reasoning_format="magic")
    assert (answer.status, answer.error["param"]) == (400, "reasoning_format")


def test_fields_of_the_request_reach_the_models_own_template(server: RunningServer) -> None:
    answer = server.chat("tells", reasoning_effort="none")
    assert answer.status == 400 and "effort noneFalse" in answer.error["message"]
    answer = server.chat("tells", reasoning_effort="high", enable_thinking=True)
    assert "effort highTrue" in answer.error["message"]
    assert server.chat("tells").status == 200
    assert server.chat("built", reasoning_effort="high").status == 200, "a built-in template has no variables"
    answer = server.chat("tells", reasoning_effort="lots")
    assert (answer.status, answer.error["param"]) == (400, "reasoning_effort")
