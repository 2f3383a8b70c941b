"""A real server on a free loopback port, in a thread, and small clients that see the bytes on the wire."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rase.registry import ModelRegistry
from rase.server.access import LOGGER, SingleLineFormatter
from rase.server.app import create_app
from rase.server.serve import Server, bind
from rase.session_cache import SessionCache

__all__ = ["Answer", "RunningServer", "chat_body", "running", "running_app", "stream_events", "wait_until"]

TIMEOUT = 20.0  # seconds after which any read in a test fails instead of hanging


def chat_body(model: str, content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """A chat request with one user message, greedy unless ``temperature`` is given."""
    return {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def wait_until(condition: Any, seconds: float = TIMEOUT) -> float:
    """Wait for ``condition()``; returns the seconds it took, fails after ``seconds``."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not true within {seconds} s")
        time.sleep(0.002)
    return time.monotonic() - start


@dataclass
class Answer:
    """One response as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body.decode("utf-8"))

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        return error

    @property
    def text(self) -> str:
        """Content of the first choice, of either form."""
        choice = self.json["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])


def stream_events(body: bytes) -> list[Any]:
    """The JSON of every event; checks the framing: LF only, one line each, [DONE] at the very end."""
    assert b"\r" not in body and b"\0" not in body
    assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
    blocks = [block for block in body[:-2].split(b"\n\n") if not block.startswith(b":")]
    assert blocks[-1] == b"data: [DONE]"
    for block in blocks:
        assert block.startswith(b"data: ") and b"\n" not in block, block
    return [json.loads(block[6:]) for block in blocks[:-1]]


class RunningServer:
    """The address of a server, and requests to it."""

    timeout = TIMEOUT

    def __init__(self, app: Any, port: int, server: Server, log: list[str]) -> None:
        self.app, self.port, self.server, self.log = app, port, server, log
        self.url = f"http://127.0.0.1:{port}"

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send ``body`` (bytes, or a value that becomes JSON) on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = (
            {"Content-Type": "application/json"}
            if headers is None and data is not None
            else dict(headers or {})
        )
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, headers=headers or {})

    def chat(self, model: str, content: Any = "Hi", **fields: Any) -> Answer:
        return self.post("/v1/chat/completions", chat_body(model, content, **fields))

    def chat_events(self, model: str, content: Any = "Hi", **fields: Any) -> list[Any]:
        answer = self.chat(model, content, stream=True, **fields)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"].startswith("text/event-stream")
        return stream_events(answer.body)

    def both(self, model: str, content: Any = "Hi", **fields: Any) -> tuple[str, str]:
        """Text and finish reason of a chat; asserts that stream and non-stream agree."""
        whole = self.chat(model, content, **fields)
        assert whole.status == 200, whole.body
        events = self.chat_events(model, content, **fields)
        text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
        reasons = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
        choice = whole.json["choices"][0]
        assert (text, reasons) == (choice["message"]["content"], [choice["finish_reason"]])
        return text, reasons[0]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=self.timeout)

    def send(self, path: str, body: Any, extra: str = "") -> socket.socket:
        """Send a POST and return the open socket."""
        data = json.dumps(body).encode()
        sock = self.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
        sock.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return sock

    def raw(self, data: bytes) -> bytes:
        """Send ``data`` and return everything until the server closes."""
        with self.connect() as sock:
            sock.sendall(data)
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))

    def jobs(self, model: str) -> int:
        """Requests of ``model`` that wait or run."""
        runner = self.app.state.runner
        if not hasattr(runner, "_lanes"):
            return len(runner._jobs[model])
        lane = runner._lanes.get(model)
        return len(lane.jobs) if lane else 0


@contextlib.contextmanager
def running(
    folder: Path, models: Mapping[str, Path], *, drain_s: float = 2.0, **options: Any
) -> Iterator[RunningServer]:
    """Serve ``models`` (id: GGUF file) from a store in ``folder``; ``options`` go to ``create_app``."""
    registry = ModelRegistry.open(folder / "store")
    for name, path in models.items():
        registry.import_local(name, path)
    options = {"cache": SessionCache(), **options}
    with running_app(create_app(registry, drain_s=drain_s, **options), drain_s=drain_s) as server:
        yield server


@contextlib.contextmanager
def running_app(app: Any, *, drain_s: float = 2.0) -> Iterator[RunningServer]:
    """Serve ``app`` on a free port."""
    sock = bind("127.0.0.1", 0)
    server = Server(app, drain_s=drain_s)
    lines: list[str] = []
    handler = _ListHandler(lines)
    LOGGER.addHandler(handler)
    logging.getLogger("uvicorn.error").addHandler(handler)
    level, LOGGER.level = LOGGER.level, logging.INFO
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield RunningServer(app, sock.getsockname()[1], server, lines)
    finally:
        server.should_exit = True
        thread.join(drain_s + 8)
        LOGGER.level = level
        LOGGER.removeHandler(handler)
        logging.getLogger("uvicorn.error").removeHandler(handler)
        sock.close()
    assert not thread.is_alive(), "the server did not end"


class _ListHandler(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
        self.setFormatter(SingleLineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
