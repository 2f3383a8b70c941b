"""SMP-1, SMP-3, SMP-5, SMP-7, SMP-9 and CTX-1 over a real socket."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.http_server import Answer, RunningServer, chat_body


def models(folder: Path) -> dict[str, Path]:
    return {
        "dice": toys.logits(folder, [0.0] * 64, name="dice"),
        "steps": toys.logits(folder, [1.0, 2.0, 3.0], name="steps"),
        "tie": toys.logits(folder, [3.0, 3.0, 1.0], name="tie"),
        "short": toys.chain(
            folder, ["x"], tokenizer=toys.toy_bpe(pieces=["x"]), name="short", context_length=64
        ),
    }


@pytest.fixture(scope="module")
def server(serve: Any) -> RunningServer:
    return serve(models)


def ask(server: RunningServer, model: str, **fields: Any) -> Answer:
    return server.post("/v1/completions", {"model": model, "prompt": "Hi", **fields})


def first(server: RunningServer, model: str, **fields: Any) -> int:
    """The id of the first token: in these models ids 0 to 63 are the bytes with that value."""
    return ord(ask(server, model, max_tokens=1, **fields).text)


def alive(server: RunningServer) -> None:
    assert first(server, "steps", temperature=0) == 2


def refused(answer: Answer, param: str) -> None:
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), answer.body
    assert answer.error["param"] == param


def test_smp_1_seeds(server: RunningServer) -> None:
    texts: dict[int, str] = {}
    for seed in (0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53 + 1, 2**63, 2**64 - 1):
        texts[seed] = ask(server, "dice", seed=seed, temperature=1, max_tokens=12).text
        assert ask(server, "dice", seed=seed, temperature=1, max_tokens=12).text == texts[seed]
    assert len(set(texts.values())) == len(texts), "no seed is cut to fewer bits"
    assert ask(server, "dice", seed=None, temperature=1, max_tokens=12).text == texts[0]
    assert ask(server, "dice", temperature=1, max_tokens=12).text == texts[0]
    for bad in (2**64, -1, 1.5, "7", True):
        refused(ask(server, "dice", seed=bad), "seed")


def test_smp_3_temperatures(server: RunningServer) -> None:
    for temperature in (0, 1e-6, 1e-45):
        assert {first(server, "steps", top_k=3, temperature=temperature, seed=s) for s in range(5)} == {2}
    assert first(server, "tie", temperature=0) == 0, "a tie picks the lowest id"
    for bad in (-0.1, 1e39):
        refused(ask(server, "steps", temperature=bad), "temperature")
    draws = Counter[str]()
    for seed in range(12):
        draws.update(ask(server, "steps", top_k=3, temperature=1e9, seed=seed, max_tokens=250).text)
    assert set(draws) == {"\0", "\1", "\2"}
    expected = draws.total() / 3
    assert draws.total() == 3000
    assert (
        sum((count - expected) ** 2 / expected for count in draws.values()) < 9.21
    )  # chi-square, 2 degrees, 1 %


def test_smp_5_top_k(server: RunningServer) -> None:
    fields = {"temperature": 2.0, "max_tokens": 40, "seed": 3}
    off = ask(server, "steps", top_k=0, **fields).text
    assert len(set(off)) > 1, "0 is off, not greedy"
    vocab = len(toys.toy_bpe())
    for same in (-1, vocab, vocab + 1, 9999999, 2**31):
        assert ask(server, "steps", top_k=same, **fields).text == off
    assert set(ask(server, "steps", top_k=1, **fields).text) == {"\2"}
    for bad in (2.5, -2, "3", True):
        refused(ask(server, "steps", top_k=bad), "top_k")
    alive(server)


def test_smp_7_logit_bias(server: RunningServer) -> None:
    def with_bias(bias: Any) -> int:
        return first(server, "steps", temperature=0, logit_bias=bias)

    assert (with_bias({"2": -100}), with_bias({"0": 100}), with_bias({}), with_bias(None)) == (1, 0, 2, 2)
    for bad in (
        {"999999": 5},
        {"abc": 1},
        {"-1": 1},
        [[2, -100]],
        {"1": "x"},
        {"1": 101},
        {"1e1": 1},
        {" 1": 1},
    ):
        answer = ask(server, "steps", logit_bias=bad)
        assert answer.status == 400 and answer.error["param"].startswith("logit_bias"), bad
    alive(server)


def test_smp_9_choices(server: RunningServer) -> None:
    fields = {"temperature": 0.9, "seed": 1, "max_tokens": 16}
    body = ask(server, "dice", n=2, **fields).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    texts = [choice["text"] for choice in body["choices"]]
    assert texts[0] != texts[1]
    assert [choice["text"] for choice in ask(server, "dice", n=2, **fields).json["choices"]] == texts
    for one in (1, None):
        assert [choice["text"] for choice in ask(server, "dice", n=one, **fields).json["choices"]] == texts[
            :1
        ]
    for bad in (0, -1, 1.5, 1000000, 2**70):
        start = time.perf_counter()
        refused(ask(server, "dice", n=bad), "n")
        assert time.perf_counter() - start < 0.1


@pytest.mark.parametrize("length", [64, 65, 200])
@pytest.mark.parametrize("stream", [False, True])
def test_ctx_1_a_prompt_that_leaves_no_room_is_refused_before_any_header(
    server: RunningServer, length: int, stream: bool
) -> None:
    answer = server.post(
        "/v1/completions", {"model": "short", "prompt": [33] * length, "stream": stream, "temperature": 0}
    )
    refused(answer, "prompt")
    assert answer.error["code"] == "context_length_exceeded"
    assert str(length) in answer.error["message"] and "64" in answer.error["message"]
    chat = server.post("/v1/chat/completions", chat_body("short", "!" * length, stream=stream))
    refused(chat, "messages")
    assert (
        chat.error["code"] == "context_length_exceeded" and chat.headers["content-type"] == "application/json"
    )


def test_ctx_1_the_last_prompt_that_fits_gets_its_one_token(server: RunningServer) -> None:
    answer = server.post("/v1/completions", {"model": "short", "prompt": [33] * 63, "temperature": 0}).json
    assert answer["choices"][0]["text"] == "x" and answer["choices"][0]["finish_reason"] == "length"
