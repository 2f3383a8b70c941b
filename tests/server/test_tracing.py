"""Request ids, log lines as JSON, and spans: the same facts, never a prompt, an answer or a key."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, wait_until

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


@pytest.mark.parametrize(("given", "kept"), [
    ("abc-123_X.y", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("a\x1b[2J", False),
    ("", False),
])  # fmt: skip
def test_request_ids(server: RunningServer, given: str, kept: bool) -> None:
    answer = server.get("/v1/models", {"X-Request-Id": given})
    name = answer.headers["x-request-id"]
    assert (name == given) == kept and re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name)
    wait_until(lambda: any(f"id={name}" in line for line in server.log))


def test_the_line_of_a_stream_says_how_it_ended(server: RunningServer) -> None:
    headers = {"Content-Type": "application/json", "X-Request-Id": "stream-1"}
    server.post("/v1/chat/completions", chat_body("counted", stream=True), headers)
    with server.send(
        "/v1/chat/completions",
        chat_body("endless", stream=True, max_tokens=50_000),
        "X-Request-Id: left-1\r\n",
    ) as sock:
        sock.recv(100)
    lines: dict[str, str] = {}

    def there() -> bool:
        lines.update({line.rsplit("id=", 1)[1]: line for line in server.log if "id=" in line})
        return {"stream-1", "left-1"} <= lines.keys()

    wait_until(there)
    assert "completion=2" in lines["stream-1"] and 'finish="stop"' in lines["stream-1"]
    assert 'error="client_closed"' in lines["left-1"]


def test_refusals_have_an_id_too(server: RunningServer) -> None:
    answer = server.get("/v1/models", {"Host": "evil.example", "X-Request-Id": "mine"})
    assert answer.status == 403 and answer.headers["x-request-id"] == "mine"


def test_json_lines(server: RunningServer) -> None:
    import logging

    from rase.server.access import LOGGER, JsonFormatter

    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Keep()
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    try:
        headers = {"Content-Type": "application/json", "X-Request-Id": "json-1", "User-Agent": 'a"\x1b\xe9'}
        server.post("/v1/chat/completions", chat_body("counted", "secret words"), headers)
        server.get("/v1/models/a%0d%0aFORGED")
        LOGGER.warning("a\nb")
        wait_until(lambda: all(any(part in line for line in lines) for part in ("json-1", "FORGED")))
        try:
            raise ValueError("secret words")
        except ValueError:
            LOGGER.exception("it failed")
    finally:
        LOGGER.removeHandler(handler)
    assert all(line.isascii() and line.isprintable() for line in lines)
    found = [json.loads(line) for line in lines]
    (chat,) = [line for line in found if line.get("id") == "json-1"]
    assert chat["event"] == "request" and chat["model"] == "counted" and chat["status"] == 200
    assert chat["completion"] == 2 and chat["finish"] == "stop" and chat["agent"] == 'a"\x1b\xe9'
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", chat["time"])
    assert any(line.get("path") == "/v1/models/a\r\nFORGED" for line in found)
    assert found[-1]["exception"].startswith("ValueError in ") and "secret" not in "".join(lines)


def test_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setenv("RASE_OTEL", "1")
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with running(tmp_path, {"chain": chain(tmp_path)}) as server:
        headers = {"Content-Type": "application/json", "traceparent": parent, "X-Request-Id": "span-1"}
        server.post("/v1/chat/completions", chat_body("chain", "secret words"), headers)
        server.chat("absent")
        server.get("/health")
        wait_until(lambda: len(exporter.get_finished_spans()) >= 5)
    spans = exporter.get_finished_spans()
    by_name = {span.name: span for span in spans}
    assert sorted(by_name) == ["chat absent", "chat chain", "decode", "prefill", "queue"]
    chat = by_name["chat chain"]
    assert chat.kind is trace.SpanKind.SERVER and f"{chat.context.trace_id:032x}" == parent[3:35]
    assert (
        chat.attributes["gen_ai.usage.output_tokens"] == 2 and chat.attributes["rase.request_id"] == "span-1"
    )
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert by_name["chat absent"].attributes["error.type"] == "model_not_found"
    previous = chat.start_time - 50_000_000
    for name in ("queue", "prefill", "decode"):
        span = by_name[name]
        assert span.parent.span_id == chat.context.span_id and previous <= span.start_time <= span.end_time
        previous = span.start_time
    assert "secret" not in "".join(span.to_json() for span in spans)


def test_nothing_of_it_is_imported_unless_asked_for(tmp_path: Path) -> None:
    code = """
import sys, rase.server.app, rase.server.serve
rase.server.app.create_app(sys.argv[1])
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
