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
