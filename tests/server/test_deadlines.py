"""``timeout`` and ``--request-timeout``: what takes longer ends with a typed error, wherever it is."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, wait_until

WORDS = ("one ", "two ")
BOUND = 0.3  # seconds


@contextlib.contextmanager
def serving(folder: Path, **options: Any) -> Iterator[RunningServer]:
    """A model that never stops by itself, one request at a time."""
    words = toys.toy_bpe(words=WORDS)
    endless = toys.chain(folder, WORDS, then=WORDS[0], tokenizer=words, context_length=200_000)
    with pytest.MonkeyPatch.context() as patch, running(folder, {"endless": endless}, **options) as server:
        patch.setenv("RASE_MAX_BATCH_SEQS", "1")
        assert server.chat("endless", max_tokens=2).text == "one two "
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("deadlines")) as running_server:
        yield running_server


def endless(**fields: Any) -> dict[str, Any]:
    return chat_body("endless", max_tokens=100_000, **fields)


def scheduler(server: RunningServer) -> Any:
    (session,) = server.app.state.runner.cache.sessions()
    return session.scheduler


def pages(server: RunningServer) -> Any:
    """What sequences hold: nothing is in the prefix cache."""
    scheduler(server).forget_prefixes()
    return scheduler(server).call(lambda: scheduler(server).pool.in_use)


def check(answer: Any, began: float) -> None:
    assert BOUND <= time.monotonic() - began < BOUND + 1
    assert (answer.status, answer.error["code"], answer.error["type"]) == (
        504, "deadline_exceeded", "server_error",
    )  # fmt: skip
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("bound", [BOUND, "300ms"])
def test_an_answer_that_takes_too_long(server: RunningServer, bound: Any) -> None:
    before, began = pages(server), time.monotonic()
    check(server.chat("endless", max_tokens=100_000, timeout=bound), began)
    assert scheduler(server).running == 0 and server.jobs("endless") == 0, "it goes on"
    assert pages(server) == before
    assert server.chat("endless", max_tokens=2, timeout=20).text == "one two "
    assert any(" 504 " in line and "deadline_exceeded" in line for line in server.log)


def test_a_stream_ends_with_an_error_event(server: RunningServer) -> None:
    answer = server.post("/v1/chat/completions", endless(stream=True, timeout=BOUND))
    assert answer.status == 200
    *events, last = [
        json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: ")
    ]
    assert last["error"]["code"] == "deadline_exceeded" and b"[DONE]" not in answer.body
    assert "".join(event["choices"][0]["delta"]["content"] for event in events).startswith("one two one ")
    assert scheduler(server).running == 0


def test_several_prompts_end_together(server: RunningServer) -> None:
    began = time.monotonic()
    body = {"model": "endless", "prompt": ["a", "b"], "max_tokens": 100_000, "timeout": BOUND}
    check(server.post("/v1/completions", body), began)
    wait_until(lambda: scheduler(server).running == 0, 1)


def test_waiting_counts(server: RunningServer) -> None:
    """A request behind another one leaves the queue; the other one goes on."""
    with contextlib.closing(server.send("/v1/chat/completions", endless(stream=True))) as other:
        wait_until(lambda: scheduler(server).running == 1)
        began = time.monotonic()
        check(server.post("/v1/chat/completions", endless(timeout=BOUND)), began)
        assert scheduler(server).waiting == 0 and server.jobs("endless") == 1
        assert other.recv(1)
    wait_until(lambda: server.jobs("endless") == 0)


def test_loading_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as server:
        seen, cache = threading.Event(), server.app.state.runner.cache
        real = cache.get_or_load

        def load(*arguments: Any, cancelled: Any, **options: Any) -> Any:
            wait_until(cancelled, 5)
            seen.set()
            return real(*arguments, **options)

        monkeypatch.setattr(cache, "get_or_load", load)
        began = time.monotonic()
        check(server.post("/v1/chat/completions", endless(timeout=BOUND)), began)
        assert seen.wait(5), "the load goes on for nobody"


def test_what_any_request_may_take(tmp_path: Path) -> None:
    with serving(tmp_path, request_s=BOUND) as server:
        for fields in ({}, {"timeout": 600}):
            began = time.monotonic()
            check(server.chat("endless", max_tokens=100_000, **fields), began)
        assert server.chat("endless", max_tokens=2).text == "one two "


@pytest.mark.parametrize("bad", [0, -1, "soon", True, [1]])
def test_bad_values_are_refused(server: RunningServer, bad: Any) -> None:
    answer = server.chat("endless", timeout=bad)
    assert answer.status == 400 and answer.error["param"] == "timeout"


def test_the_stock_client_sees_an_error_and_does_not_repeat_it(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=2)
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model="endless", messages=[{"role": "user", "content": "Hi"}], max_tokens=100_000,
            extra_body={"timeout": BOUND},
        )  # fmt: skip
    assert caught.value.status_code == 504 and caught.value.code == "deadline_exceeded"
    assert time.monotonic() - began < 2 * BOUND + 1
