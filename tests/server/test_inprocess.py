"""The transport without a socket: the stock openai client, sync and async, on the engine of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import rase
from rase.engine.sequence import Sequence
from rase.errors import BackendError
from rase.registry import ModelRegistry
from rase.server import inprocess
from rase.server.app import create_app
from rase.session_cache import SessionCache
from tests.server.conftest import WORDS
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, wait_until

TEXT = "alpha beta gamma delta"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
CHAT: Any = {"model": "chain", "messages": MESSAGES, "temperature": 0}
ENDLESS: Any = {"model": "endless", "messages": MESSAGES, "temperature": 0, "max_tokens": 100_000}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inprocess")
    words = toys.toy_bpe(words=WORDS)
    registry = ModelRegistry.open(folder / "store")
    registry.import_local("chain", toys.chain(folder, WORDS, tokenizer=words))
    endless = toys.chain(
        folder, WORDS, then=WORDS[0], tokenizer=words, name="endless", context_length=200_000
    )
    registry.import_local("endless", endless)
    return create_app(registry, SessionCache())


@pytest.fixture
def client(app: Any) -> Iterator[openai.OpenAI]:
    with inprocess.openai_client(app=app) as client:
        yield client


def idle(app: Any) -> bool:
    return app.state.runner.active == 0


def test_the_stock_client_chats_whole_and_streamed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == TEXT and answer.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5
    assert {model.id for model in client.models.list()} == {"chain", "endless"}


def test_answers_are_those_of_the_server(client: openai.OpenAI, server: RunningServer) -> None:
    def facts(answer: Any) -> Any:
        return {name: value for name, value in answer.items() if name not in ("id", "created")}

    body = chat_body("chain", logprobs=True, top_logprobs=2, n=2)
    here = client._client.post(inprocess.BASE_URL + "/chat/completions", json=body)
    assert here.status_code == 200
    assert facts(here.json()) == facts(server.post("/v1/chat/completions", body).json)


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="chain", messages=MESSAGES, temperature=-1)


def test_pieces_come_while_the_answer_is_generated_and_leaving_stops_it(
    client: openai.OpenAI, app: Any
) -> None:
    with client.chat.completions.create(**ENDLESS, stream=True) as stream:
        seen = [next(stream) for _ in range(5)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen).startswith("alpha ")
    wait_until(lambda: idle(app), 5)
    assert client.chat.completions.create(**CHAT).choices[0].message.content == TEXT


class Brake:
    """Counts the tokens that the model makes, and stops it before the one that ``held`` names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens, self.held, self.go = 0, 10**9, threading.Event()
        real = Sequence.take

        def take(sequence: Sequence, row: Any, observer: Any) -> bool:
            self.tokens += 1
            if self.tokens == self.held:
                assert self.go.wait(10), "nobody has seen the first piece"
            return real(sequence, row, observer)

        monkeypatch.setattr(Sequence, "take", take)


def test_the_first_piece_is_there_before_the_last_token_is_chosen(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake = Brake(monkeypatch)
    brake.held = 6  # the end token
    with client.chat.completions.create(**CHAT, stream=True) as stream:
        text = ""
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text:
                brake.go.set()
    assert text == TEXT and brake.tokens == 6


def test_a_reader_that_stops_holds_its_own_answer_and_gets_all_of_it(
    client: openai.OpenAI, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake = Brake(monkeypatch)
    asked = {**ENDLESS, "max_tokens": 5000}
    with client.chat.completions.create(**asked, stream=True) as stream:
        text = next(stream).choices[0].delta.content or ""
        last, deadline = -1, time.monotonic() + 10
        while last < brake.tokens and time.monotonic() < deadline:
            last = brake.tokens
            time.sleep(0.3)
        assert 0 < brake.tokens < 4000, "the model runs far ahead of its reader"
        assert client.chat.completions.create(**CHAT).choices[0].message.content == TEXT
        text += "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "".join(WORDS[i % len(WORDS)] for i in range(5000))


def test_an_answer_that_is_cut_is_an_error(app: Any) -> None:
    """As from a server that closes the connection: nobody takes a part for the whole."""
    http = pytest.importorskip("httpx")

    async def cut(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async def read() -> None:
        async with http.AsyncClient(transport=inprocess.Transport(app=cut)) as client:
            await client.get(inprocess.BASE_URL)

    client = http.Client(transport=inprocess.Transport(app=cut))
    with client, pytest.raises(http.RemoteProtocolError):
        client.get(inprocess.BASE_URL)
    with pytest.raises(http.RemoteProtocolError):
        asyncio.run(read())


def test_a_timeout_ends_the_request_on_both_sides(client: openai.OpenAI, app: Any) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(**ENDLESS)
    wait_until(lambda: idle(app), 5)


def test_clients_of_many_threads_share_one_application(app: Any) -> None:
    answers: list[str | None] = []

    def ask(client: openai.OpenAI) -> None:
        answers.append(client.chat.completions.create(**CHAT).choices[0].message.content)

    with inprocess.openai_client(app=app) as client:
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert answers == [TEXT] * 8


async def chat_and_leave(app: Any) -> None:
    async with inprocess.async_openai_client(app=app) as client:
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(**CHAT, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        endless = await client.chat.completions.create(**ENDLESS, stream=True)
        async for chunk in endless:
            if chunk.choices[0].delta.content:
                break
        await endless.close()


def test_the_async_client(app: Any) -> None:
    asyncio.run(chat_and_leave(app))
    wait_until(lambda: idle(app), 5)


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_both_libraries_under_both_event_loops(app: Any, library: str, backend: str) -> None:
    import anyio

    http = pytest.importorskip(library)

    async def main() -> None:
        async with http.AsyncClient(transport=inprocess.Transport(app=app)) as client:
            url = inprocess.BASE_URL + "/chat/completions"
            answer = await client.post(url, json=CHAT)
            assert answer.json()["choices"][0]["message"]["content"] == TEXT
            async with client.stream("POST", url, json={**CHAT, "stream": True}) as stream:
                lines = [line async for line in stream.aiter_lines()]
            assert lines[-2:] == ["data: [DONE]", ""]
            with anyio.move_on_after(0.2) as scope:  # no answer yet: the request is cancelled
                await client.post(url, json=ENDLESS)
            assert scope.cancelled_caught

    anyio.run(main, backend=backend)
    wait_until(lambda: idle(app), 5)


def test_models_that_are_in_no_store(tmp_path: Path) -> None:
    words = toys.toy_bpe(words=WORDS)
    with rase.load(toys.chain(tmp_path, WORDS, tokenizer=words)) as model:
        with inprocess.openai_client(model) as client:
            assert [listed.id for listed in client.models.list()] == [model.id]
            answer = client.chat.completions.create(model=model.id, messages=MESSAGES, temperature=0)
            assert answer.choices[0].message.content == TEXT
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("chain-2")
        assert model.chat("Hi", temperature=0) == TEXT, "the model is not the client's to close"


def test_closing_ends_the_thread_and_what_runs(app: Any) -> None:
    transport = inprocess.Transport(app=app)
    http = pytest.importorskip("httpx")
    client, errors = http.Client(transport=transport), []

    def ask() -> None:
        try:
            client.post(inprocess.BASE_URL + "/chat/completions", json=ENDLESS)
        except Exception as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: not idle(app))
    start = time.monotonic()
    transport.close()
    asking.join(5)
    assert time.monotonic() - start < 5 and not transport._thread.is_alive()
    assert [type(error) for error in errors] == [BackendError]
    with pytest.raises(BackendError):
        client.get(inprocess.BASE_URL + "/models")
    wait_until(lambda: idle(app), 5)
    transport.close()


def test_a_client_that_stays_silent_wakes_nothing(client: openai.OpenAI) -> None:
    client.chat.completions.create(**CHAT)
    time.sleep(0.1)
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.05
