"""The stock ``openai`` client: what it sends by itself, and what it makes of our answers."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.http_server import RunningServer, wait_until

TEXT = "alpha beta gamma delta"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", timeout=20) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="chain", messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == TEXT and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="chain", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == 5


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="chain", messages=MESSAGES, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == TEXT == final.choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    assert client.completions.create(model="chain", prompt="Hi", temperature=0).choices[0].text == TEXT
    stream = client.completions.create(model="chain", prompt="Hi", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_models(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"chain", "dice", "tiny"}
    assert client.models.retrieve("chain").id == "chain"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_extensions_in_extra_body(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="chain",
        messages=MESSAGES,
        max_completion_tokens=2,
        seed=1,
        extra_body={"top_k": 1, "repeat_penalty": 1.0},
    )
    assert answer.choices[0].message.content == "alpha be" and answer.choices[0].finish_reason == "length"


def test_errors_are_the_clients_classes_and_are_not_repeated(
    client: openai.OpenAI, server: RunningServer
) -> None:
    def requests() -> int:
        return sum('"/v1/chat/completions"' in line for line in server.log)

    before = requests()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="chain", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model="chain",
            messages=MESSAGES,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert missing.value.code == "model_not_found"
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    assert "tools are not supported" in str(tools.value)
    wait_until(lambda: requests() == before + 3)


def test_structured_output_fails_closed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="only plain text"):
        client.chat.completions.create(
            model="chain", messages=MESSAGES, response_format={"type": "json_object"}
        )


def test_leaving_a_stream_early_frees_the_model(client: openai.OpenAI, server: RunningServer) -> None:
    stream = client.chat.completions.create(model="dice", messages=MESSAGES, stream=True, max_tokens=3000)
    for _ in zip(range(3), stream, strict=False):
        pass
    stream.close()
    assert wait_until(lambda: server.jobs("dice") == 0) < 2


async def _ask(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", timeout=20) as client:
        stream = await client.chat.completions.create(
            model="chain", messages=MESSAGES, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_the_async_client(server: RunningServer) -> None:
    import asyncio

    async def several() -> list[str]:
        return await asyncio.gather(*(_ask(server.url) for _ in range(4)))

    assert asyncio.run(several()) == [TEXT] * 4
