"""THK-1 over a real socket: reasoning apart from content, in a stream and out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.http_server import RunningServer

# name: (pieces, reasoning, content); the last one is cut by max_tokens
ANSWERS = {
    "empty": (["<think>", "</think>", "hi"], "", "hi"),
    "blank": (["<thi", "nk>\n\n<", "/think>\n", "\nhi"], "", "hi"),
    "half": (["x", "</think>h", "i"], "x", "hi"),
    "twice": (["</thi", "nk></think", ">", "hi"], "", "hi"),
    "cut": (["<think>", "ab", "c", "d"], "abc", ""),
}


def models(folder: Path) -> dict[str, Path]:
    return {
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
    answer = server.chat(name, reasoning_format="deepseek", **fields).json["choices"][0]
    message = answer["message"]
    assert (message["reasoning_content"], message["content"]) == (reasoning, content)
    assert message["reasoning"] == reasoning and answer["finish_reason"] == finish
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
