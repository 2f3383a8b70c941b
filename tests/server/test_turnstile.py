"""Refusals at a full queue: who is told at once hears what the long way says, and nobody else is judged."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rase.server.reception import TURN_S, Reception
from rase.server.turnstile import Turnstile
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, wait_until

WORDS = ["one ", "two "]
KEY = "a-key-of-this-server"
BODY = json.dumps(chat_body("endless", max_tokens=2)).encode()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """``endless`` runs one request that does not stop, and its queue has no place; ``chain`` is free."""
    folder = tmp_path_factory.mktemp("turnstile")
    words = toys.toy_bpe(words=WORDS)
    models = {
        "endless": toys.chain(
            folder, WORDS, then=WORDS[0], tokenizer=words, name="endless", context_length=200_000
        ),
        "chain": toys.chain(folder, WORDS, tokenizer=words),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RASE_MAX_BATCH_SEQS", "1")
        options: Any = {"queue_limit": 0, "api_keys": [KEY], "allowed_origins": ["https://page.example"]}
        with running(folder, models, **options) as server:
            head = f"Authorization: Bearer {KEY}\r\n"
            body = chat_body("endless", max_tokens=150_000, stream=True)
            with server.send("/v1/chat/completions", body, head) as sock:
                wait_until(lambda: server.jobs("endless") == 1)
                yield server
                sock.close()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that was looked at: whether it was refused at once."""
    found: list[bool] = []
    real = Turnstile.refuse

    def refuse(self: Turnstile, *request: Any) -> Any:
        answer = real(self, *request)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(Turnstile, "refuse", refuse)
    return found


def request(
    body: bytes = BODY, path: str = "/v1/chat/completions", version: str = "1.1", **changed: str | None
) -> bytes:
    fields: dict[str, str | None] = {
        "Host": "localhost", "Content-Type": "application/json", "Authorization": f"Bearer {KEY}",
        "X-Request-Id": "mine", "Connection": "close", "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }  # fmt: skip
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([f"POST {path} HTTP/{version}", *lines, "", ""]).encode() + body


def parsed(raw: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Status line, headers in order of their names and without the date, body."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = [line.partition(b": ")[0].lower() + b": " + line.partition(b": ")[2] for line in lines]
    return status, sorted(line for line in headers if not line.startswith(b"date: ")), body


REFUSED = {
    "a chat": request(),
    "a chat without /v1": request(path="/chat/completions"),
    "a completion": request(json.dumps({"model": "endless", "prompt": "x"}).encode(), "/v1/completions"),
    "from a page": request(Origin="https://page.example"),
    "with the key elsewhere": request(Authorization=None, X_Api_Key=KEY),
    "with a body that is wrong": request(json.dumps({"model": "endless", "n": -1}).encode()),
}
JUDGED_ELSEWHERE = {
    "another model": request(json.dumps(chat_body("chain")).encode()),
    "no model": request(json.dumps({"messages": []}).encode()),
    "an unknown model": request(json.dumps(chat_body("nothing")).encode()),
    "no JSON": request(b"model endless"),
    "a wrong key": request(Authorization="Bearer wrong-key-of-nobody"),
    "no key": request(Authorization=None),
    "a foreign host": request(Host="evil.example"),
    "no host": request(Host=None),
    "a foreign origin": request(Origin="https://evil.example"),
    "a form": request(Content_Type="application/x-www-form-urlencoded"),
    "another path": request(path="/v1/embeddings"),
    "a query": request(path="/v1/chat/completions?x=1"),
    "an escaped path": request(path="/v1/chat%2Fcompletions"),
    "HTTP/1.0": request(version="1.0"),
    "a bare line feed": request().replace(b"\r\nX-Request-Id", b"\nX-Request-Id"),
    "a folded header": request(X_Fold="a\r\n b"),
    "a space before the colon": request().replace(b"X-Request-Id:", b"X-Request-Id :"),
    "two keys": request(X_Api_Key=KEY).replace(b"\r\n\r\n", b"\r\nX-Api-Key: other-key\r\n\r\n", 1),
    "two hosts": request().replace(b"\r\n\r\n", b"\r\nHost: localhost\r\n\r\n", 1),
    "chunks": request(b"2\r\n{}\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked"),
    "two lengths": request(Transfer_Encoding="chunked"),
    "a length with a sign": request(Content_Length=f"+{len(BODY)}"),
    "more than its length": request() + b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "an expectation": request(Expect="100-continue"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_who_is_told_at_once_hears_what_the_long_way_says(
    full: RunningServer, seen: list[bool], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def lines() -> list[str]:
        fields = [line.split() for line in full.log if " id=mine" in line]
        return [" ".join(part for part in line[1:] if not part.endswith("s")) for line in fields]

    full.log.clear()
    at_once = parsed(full.raw(REFUSED[name]))
    assert seen == [True] and at_once[0] == b"HTTP/1.1 503 Service Unavailable"
    assert b"x-request-id: mine" in at_once[1] and any(
        line.startswith(b"retry-after: ") for line in at_once[1]
    )
    monkeypatch.setattr(Turnstile, "refuse", lambda *arguments: None)
    assert parsed(full.raw(REFUSED[name])) == at_once
    wait_until(lambda: len(lines()) == 2)
    assert lines()[0] == lines()[1] and "503" in lines()[0] and 'error="server_busy"' in lines()[0]


@pytest.mark.parametrize("name", JUDGED_ELSEWHERE)
def test_whatever_is_unusual_goes_the_long_way(full: RunningServer, seen: list[bool], name: str) -> None:
    status = parsed(full.raw(JUDGED_ELSEWHERE[name]))[0]
    assert not any(seen), f"{name}: {status!r}"


def test_refusals_are_counted(full: RunningServer) -> None:
    def count() -> float:
        text = full.get("/metrics", {"Authorization": f"Bearer {KEY}"}).body.decode()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "503" in line and "_total{" in line
        )

    before = count()
    full.raw(request())
    assert count() == before + 1


def test_the_connection_can_be_used_again(full: RunningServer, seen: list[bool]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", full.port, timeout=20)
    with contextlib.closing(connection):
        for body, status in ((BODY, 503), (BODY, 503), (json.dumps(chat_body("chain")).encode(), 200)):
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            assert (response.status, len(response.read()) > 0) == (status, True)
            sock = connection.sock
        assert connection.sock is sock, "another connection was made"
    assert sum(seen) == 2 and not seen[-1]  # a body that comes apart is looked at twice


def test_a_body_that_does_not_come_is_not_waited_for(full: RunningServer, seen: list[bool]) -> None:
    head, _, body = request().partition(b"\r\n\r\n")
    with full.connect() as sock:
        sock.sendall(head + b"\r\n\r\n" + body[:10])
        wait_until(lambda: len(seen) == 2)
        sock.sendall(body[10:])
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert parsed(raw)[0] == b"HTTP/1.1 503 Service Unavailable" and seen == [False, False]


def test_a_crowd_that_is_refused_leaves_the_others_their_turns() -> None:
    import asyncio

    async def crowd() -> int:
        reception, refused, turns = Reception(), [], 0

        def refuse() -> bool:
            time.sleep(TURN_S / 5)
            refused.append(1)
            return True

        for _ in range(30):
            reception.wait(refuse)
        while len(refused) < 30:
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert 5 <= asyncio.run(crowd()) <= 15
