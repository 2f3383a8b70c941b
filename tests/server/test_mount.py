"""``create_app`` inside a host's own server: mounted under a path, without its lifespan, sharing a cache."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from rase.server import create_app
from rase.server.serve import bind
from rase.session_cache import SessionCache
from rase.store import open_store
from tests.support import toys
from tests.support.http_server import chat_body, stream_events, wait_until


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, SessionCache]]:
    """A plain uvicorn with a host application that mounts ours under /llm."""
    folder = tmp_path_factory.mktemp("host")
    store = open_store(folder / "store")
    words = toys.toy_bpe(words=["one ", "two "])
    store.import_local("only", toys.chain(folder, ["one ", "two "], tokenizer=words))
    cache = SessionCache()

    async def home(request: Any) -> PlainTextResponse:
        return PlainTextResponse("host")

    app = Starlette(routes=[Route("/", home), Mount("/llm", create_app(folder / "store", cache))])
    sock = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield sock.getsockname()[1], cache
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, data


def test_a_mounted_application_answers(host: tuple[int, SessionCache]) -> None:
    port, cache = host
    assert ask(port, "GET", "/") == (200, b"host")
    assert ask(port, "GET", "/llm/health")[0] == 200
    status, data = ask(port, "POST", "/llm/v1/chat/completions", chat_body("only"))
    assert status == 200 and json.loads(data)["choices"][0]["message"]["content"] == "one two "
    status, data = ask(port, "POST", "/llm/v1/chat/completions", chat_body("only", stream=True))
    assert status == 200 and len(stream_events(data)) == 4
    assert [session.id for session in cache.sessions()] == [
        "only"
    ]  # the host sees and shares the loaded model


def test_the_only_model_needs_no_name(host: tuple[int, SessionCache]) -> None:
    for model in (None, ""):
        status, data = ask(host[0], "POST", "/llm/v1/chat/completions", chat_body(model))  # type: ignore[arg-type]
        assert status == 200 and json.loads(data)["model"] == "only"
    assert (
        ask(host[0], "POST", "/llm/v1/chat/completions", chat_body("other"))[0] == 404
    )  # a wrong name is wrong


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, rase.server; print([m for m in ('starlette', 'uvicorn', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from rase.errors import BackendUnavailable

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    monkeypatch.delitem(sys.modules, "rase.server")
    with pytest.raises(BackendUnavailable, match=r"pip install \"rase-llm\[server\]\""):
        importlib.import_module("rase.server")


def test_an_unknown_name_is_an_attribute_error() -> None:
    import rase.server

    with pytest.raises(AttributeError):
        rase.server.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_store_that_is_a_registry(tmp_path: Path) -> None:
    registry = open_store(tmp_path)
    assert create_app(registry).state.runner.registry is registry


_HOST = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from rase.server import create_app

app = Starlette(routes=[Mount("/llm", create_app(sys.argv[1], drain_s=0.3))])
server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="info"))
server.run()
"""


def test_a_host_that_is_told_to_end_does_not_wait_for_a_stream(tmp_path: Path) -> None:
    """uvicorn alone would wait until the last token of an endless answer."""
    words = toys.toy_bpe(words=["one ", "two "])
    path = toys.chain(tmp_path, ["one ", "two "], then="one ", tokenizer=words, context_length=10_000_000)
    open_store(tmp_path / "store").import_local("endless", path)
    command = [sys.executable, "-c", _HOST, str(tmp_path / "store")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "running on" in line)
        port = int(re.search(r"127.0.0.1:(\d+)", line)[1])  # type: ignore[index]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        body = json.dumps(chat_body("endless", stream=True, max_tokens=9_000_000))
        connection.request("POST", "/llm/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        process.send_signal(signal.SIGTERM)
        rest = response.read()
        assert b'"code":"server_busy"' in rest[-400:] and b"[DONE]" not in rest[-400:]
        assert process.wait(20) in (0, -signal.SIGTERM)
