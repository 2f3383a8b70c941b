"""What stands around the application behind Serve's proxy."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rase.cluster.front import Front


def ask(
    address: Any, *, open: bool = False, path: str = "/v1/models", id: bytes = b"mine"
) -> tuple[int, Any, bytes]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"x-request-id", b"mine"), (b"a", b"b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": path,
        "server": address,
        "headers": [(b"x-request-id", id)],
        "method": "GET",
    }
    asyncio.run(Front(app, open=open)(scope, None, send))
    return sent[0]["status"], sent[0]["headers"], sent[1]["body"]


def test_other_machines_need_a_key_or_a_word() -> None:
    status, _, body = ask(("192.0.2.1", 8000))
    assert status == 403 and json.loads(body)["error"]["code"] == "api_key_required"
    for address in [("127.0.0.1", 8000), ("::1", 8000)]:
        assert ask(address)[0] == 200
    assert ask(("192.0.2.1", 8000), open=True)[0] == 200 == ask(("192.0.2.1", 80), path="/health")[0]
    assert ask(None)[0] == 403, "an address that nobody tells is no loopback"


@pytest.mark.parametrize(("id", "kept"), [(b"mine", 0), (b"another", 1)])
def test_the_request_id_is_sent_once(id: bytes, kept: int) -> None:
    headers = ask(("127.0.0.1", 1), id=id)[1]
    assert [name for name, _ in headers].count(b"x-request-id") == kept and (b"a", b"b") in headers
