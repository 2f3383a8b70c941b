"""A prompt in place of messages (the origin's small server), and answers that go on behind end tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.http_server import RunningServer, running

WORDS = ["one ", "two "]


def chain(folder: Path, **options: Any) -> Path:
    return toys.chain(folder, WORDS, tokenizer=toys.toy_bpe(pieces=WORDS), **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("operations")
    endless = toys.chain(
        folder, WORDS, then=WORDS[0], tokenizer=toys.toy_bpe(pieces=WORDS), name="endless",
        context_length=200_000,
    )  # fmt: skip
    with running(folder, {"counted": chain(folder), "endless": endless}) as server:
        yield server


def test_a_prompt_is_one_user_message_and_streams(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rase.server import runner as lanes

    seen: list[Any] = []
    real = lanes.prepare
    monkeypatch.setattr(
        lanes, "prepare", lambda session, asked: (seen.append(asked), real(session, asked))[1]
    )
    answer = server.post("/v1/chat/completions", {"model": "counted", "prompt": "Hi"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    (asked,) = seen
    (message,) = asked.messages
    assert (message.role, message.content) == ("user", "Hi")
    config = asked.config
    assert (config.temperature, config.top_p, config.max_tokens) == (0.7, 0.9, 128)
    body = {
        "model": "counted",
        "prompt": "Hi",
        "stream": False,
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 5,
    }
    assert server.post("/v1/chat/completions", body).text == "one two "
    assert (seen[-1].config.temperature, seen[-1].config.top_p, seen[-1].config.max_tokens) == (0.0, 0.5, 5)
    both = {"model": "counted", "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
    assert server.post("/v1/chat/completions", both).error["param"] == "prompt"
    assert server.post("/v1/chat/completions", {"model": "counted", "prompt": 5}).status == 400
    assert server.app.state.runner.queue_limit == 32


def test_ignore_eos(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    on = server.chat("counted", ignore_eos=True, max_tokens=7).json
    assert on["usage"]["completion_tokens"] == 7 and on["choices"][0]["finish_reason"] == "length"
    assert server.chat("counted", ignore_eos=False).text == "one two "
    monkeypatch.setenv("RASE_IGNORE_EOS", "1")
    assert server.chat("counted", max_tokens=7).json["usage"]["completion_tokens"] == 7
    assert server.chat("counted", ignore_eos=False, max_tokens=7).text == "one two "
