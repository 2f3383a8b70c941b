"""Host, Origin and header rules: an exact table, by default closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rase.server.guard import Guard

LOOPBACK, LAN = "127.0.0.1", "192.168.1.5"


def ask(
    headers: list[tuple[str, str]], *, server: str | None = LOOPBACK, method: str = "POST", **options: Any
) -> tuple[int, dict[str, str]]:
    """Status and headers of a request that reaches us on the local address ``server``."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": "/v1/models", "scheme": "http", "client": ("127.0.0.1", 5),
        "server": (server, 8080) if server else None,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }  # fmt: skip
    asyncio.run(Guard(app, **options)(scope, None, send))
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}


@pytest.mark.parametrize("host", [
    "localhost", "LOCALHOST", "LOCALHOST.", "localhost:8080", "127.0.0.1", "127.0.0.1:8080", "127.9.9.9",
    "[::1]", "[::1]:8080", "[::ffff:127.0.0.1]",
])  # fmt: skip
def test_loopback_names_are_welcome(host: str) -> None:
    assert ask([("Host", host)])[0] == 200


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:8080", "localhost.evil.example", "evil-localhost", "0.0.0.0",
    "0.0.0.0:8080", "192.168.1.5", "127.0.0.1.evil.example", "", "localhost:x", "a@localhost", "localhost/x",
    "[::2]", "local host", "127.0.0.1, evil.example", "\xe9vil",
])  # fmt: skip
def test_other_names_are_refused_on_loopback(host: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert ask([("Host", host)], method=method)[0] == 403


def test_a_request_without_host_is_no_browser() -> None:
    assert ask([])[0] == 200


def test_off_loopback_the_name_is_free_unless_hosts_are_listed() -> None:
    assert ask([("Host", "models.example")], server=LAN)[0] == 200
    assert ask([("Host", "models.example")], server=None)[0] == 200
    assert ask([("Host", "other.example")], server=LAN, hosts=["models.example"])[0] == 403
    assert ask([("Host", "Models.Example.:80")], server=LAN, hosts=["models.example"])[0] == 200
    assert ask([("Host", "models.example")], server=LOOPBACK, hosts=["models.example"])[0] == 200


@pytest.mark.parametrize("origin", [
    "https://evil.example", "http://evil.example:8080", "null", "http://localhost:3000", "http://127.0.0.1",
    "", "file://", "app://page", "http://localhost:8080.evil.example", "https://127.0.0.1:8443",
    "http://[::1", "http://localhost:99999999",
])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_foreign_origins_are_refused(origin: str, method: str) -> None:
    headers = [("Host", "127.0.0.1:8080"), ("Origin", origin), ("Access-Control-Request-Method", "POST")]
    status, answer = ask(headers, method=method)
    assert status == 403
    assert not [name for name in answer if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8080", "http://localhost:8080", "http://[::1]:8080"])
def test_own_pages_may_call(origin: str) -> None:
    status, answer = ask([("Host", "127.0.0.1:8080"), ("Origin", origin)])
    assert status == 200 and "access-control-allow-origin" not in answer


def test_same_origin_off_loopback() -> None:
    headers = [("Host", "models.example"), ("Origin", "https://models.example")]
    assert ask(headers, server=LAN)[0] == 200
    assert ask([("Host", "models.example"), ("Origin", "https://evil.example")], server=LAN)[0] == 403


def test_listed_origins_get_cors_headers_and_never_a_star() -> None:
    origins = ["https://app.example"]
    headers = [("Host", "localhost"), ("Origin", "https://app.example")]
    status, answer = ask(headers, origins=origins)
    assert (status, answer["access-control-allow-origin"]) == (200, "https://app.example")
    assert "access-control-allow-credentials" not in answer
    status, answer = ask(
        [*headers, ("Access-Control-Request-Method", "POST")], method="OPTIONS", origins=origins
    )
    assert (status, answer["access-control-allow-origin"]) == (204, "https://app.example")
    assert ask([("Host", "localhost"), ("Origin", "https://evil.example")], origins=origins)[0] == 403


def test_headers_have_a_size_limit() -> None:
    assert ask([("Host", "localhost"), ("X-A", "x" * 60_000)])[0] == 200
    assert ask([("Host", "localhost"), ("X-A", "x" * 60_000), ("X-B", "x" * 6_000)])[0] == 431


@pytest.mark.parametrize("name", ["Host", "Origin", "Content-Type", "Content-Encoding", "Authorization"])
def test_a_header_that_decides_something_is_given_once(name: str) -> None:
    value = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}.get(name, "x")
    head = [("Host", "localhost:8080")] if name != "Host" else []
    assert ask([*head, (name, value)])[0] == 200
    for other in (value, "https://evil.example"):
        for pair in ([(name, value), (name, other)], [(name, other), (name, value)]):
            assert ask([*head, *pair])[0] == 400
