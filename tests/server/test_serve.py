"""``serve`` as a process: what it prints, ports, addresses, and the stock client against a real model."""

from __future__ import annotations

import http.client
import json
import shlex
import signal
from pathlib import Path

import openai
import pytest

from rase.errors import InvalidSetting
from rase.server.serve import bind
from rase.store import open_store
from tests.support import toys
from tests.support.http_process import serving
from tests.support.http_server import wait_until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    words = toys.toy_bpe(pieces=["one ", "two "])
    path = toys.chain(folder, ["one ", "two "], tokenizer=words)
    open_store(folder / "store").import_local("chain", path)
    return folder / "store"


def test_port_0_prints_the_real_address_and_a_line_that_works(store: Path) -> None:
    with serving(store) as server:
        assert server.port > 0
        text = "".join(server.stderr)
        assert f"rase serves 1 model at {server.url}/v1" in text
        (line,) = [line for line in server.stderr if line.startswith("try: ")]
        words = shlex.split(line.removeprefix("try: "))
        assert words[0] == "curl" and words[2] == f"{server.url}/v1/chat/completions"
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        header = words[words.index("-H") + 1].split(": ")
        connection.request("POST", "/v1/chat/completions", words[words.index("-d") + 1], dict([header]))
        answer = json.loads(connection.getresponse().read())
        assert answer["choices"][0]["message"]["role"] == "assistant"
        connection.close()
        assert not [line for line in server.stderr if "can reach this address" in line]
        logged = '"POST" "/v1/chat/completions" 200'
        wait_until(lambda: any(logged in line and "prompt=" in line for line in server.stderr))


def test_a_busy_port_is_one_clear_error(store: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidSetting, match=rf"127.0.0.1 port {port}: found the port is in use.*--port 0"
        ):
            bind("127.0.0.1", port)
        with serving(store, port=port) as server:
            assert server.ended() == 1
            assert "InvalidSetting" in "".join(server.stderr)


@pytest.mark.parametrize(("host", "port"), [
    ("127.0.0.1", 70000), ("127.0.0.1", -1), ("no such host.invalid", 0), ("192.0.2.1", 0), ("x" * 300, 0),
])  # fmt: skip
def test_addresses_that_cannot_be_used(host: str, port: int) -> None:
    with pytest.raises(InvalidSetting):
        bind(host, port)


def test_the_openai_client_chats_with_a_real_model_of_the_command_line(smollm2: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    open_store(store).import_local("smollm2", smollm2)
    command = ["-m", "rase", "serve", "--store", str(store), "--port", "0"]
    fields = {
        "model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0, "max_tokens": 16,
    }  # fmt: skip
    with (
        serving(store, command=command) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", timeout=60) as client,
    ):
        answer = client.chat.completions.create(**fields)
        streamed = list(client.chat.completions.create(**fields, stream=True))
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
    text = answer.choices[0].message.content
    assert text == "The capital of France is Paris." and answer.choices[0].finish_reason == "stop"
    assert text == "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert answer.usage.prompt_tokens == 37 and 0 < answer.usage.completion_tokens <= 16
    assert {chunk.system_fingerprint for chunk in streamed} == {answer.system_fingerprint}
