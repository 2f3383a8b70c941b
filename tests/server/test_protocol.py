"""The wire below HTTP: slow, huge and broken requests end in time, with a reason, and harm nobody else."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rase.server import body as bodies
from rase.server.framing import MAX_CHUNKS
from rase.server.protocol import GuardedProtocol
from tests.support import toys
from tests.support.http_server import TIMEOUT, RunningServer, chat_body, running

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose limits on slow clients are short."""
    folder = tmp_path_factory.mktemp("protocol")
    patch = pytest.MonkeyPatch()
    patch.setattr(GuardedProtocol, "header_timeout", 0.5)
    patch.setattr(GuardedProtocol, "write_stall", 0.5)
    patch.setattr(GuardedProtocol, "linger_seconds", 0.5)
    patch.setattr(bodies.read_body, "__defaults__", (bodies.MAX_BODY, 0.5))
    words = toys.toy_bpe(words=["one ", "two "])
    with running(folder, {"chain": toys.chain(folder, ["one ", "two "], tokenizer=words)}) as server:
        yield server
    patch.undo()


def alive(server: RunningServer) -> None:
    assert server.chat("chain").text == "one two "


def until_closed(sock: socket.socket) -> tuple[bytes, float]:
    """What came until the server closed, and how long that took; fails after the time limit of all reads."""
    start, data = time.monotonic(), b""
    while time.monotonic() - start < TIMEOUT:
        try:
            part = sock.recv(1 << 16)
        except ConnectionResetError:
            part = b""
        if not part:
            return data, time.monotonic() - start
        data += part
    raise AssertionError("the server did not close")


def answer(raw: bytes) -> tuple[int, dict[str, str]]:
    """Status and error object of a raw response."""
    head, _, body = raw.partition(b"\r\n\r\n")
    (length,) = [
        int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    ]
    return int(head.split()[1]), json.loads(body[:length])["error"]


def drip(sock: socket.socket, data: bytes, stop: threading.Event) -> None:
    for i in range(len(data)):
        if stop.wait(0.05):
            return
        try:
            sock.sendall(data[i : i + 1])
        except OSError:
            return


@pytest.mark.parametrize("start", [b"", b"GET /hea", GET, b"\r\n"])
def test_slow_headers_are_closed(quick: RunningServer, start: bytes) -> None:
    for keep_alive in (False, True):
        stop = threading.Event()
        with quick.connect() as sock:
            if keep_alive:  # a second head on a used connection has the same limit
                sock.sendall(GET + b"\r\n")
                assert b"200 OK" in sock.recv(4096)
            sock.sendall(start)
            thread = threading.Thread(target=drip, args=(sock, b"X-Slow: " + b"x" * 400, stop))
            thread.start()
            raw, seconds = until_closed(sock)
            stop.set()
            thread.join()
        assert seconds < 3
        assert answer(raw)[0] == 408 or (answer(raw)[0] == 400 and start in (b"", b"\r\n"))  # no request line
    alive(quick)


def test_a_connection_that_sends_nothing_is_closed(quick: RunningServer) -> None:
    with quick.connect() as sock:
        assert until_closed(sock)[1] < 3


def test_slow_bodies_are_closed(quick: RunningServer) -> None:
    for trickle in (b"", b" " * 400):
        stop = threading.Event()
        with quick.connect() as sock:
            sock.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
            thread = threading.Thread(target=drip, args=(sock, trickle, stop))
            thread.start()
            raw, seconds = until_closed(sock)
            stop.set()
            thread.join()
        assert answer(raw)[0] == 408 and b"connection: close" in raw and seconds < 3
    alive(quick)


@pytest.mark.parametrize("head", [
    GET + b"X-Big: " + b"x" * (70 << 10) + b"\r\n\r\n",
    GET + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 1000) for i in range(80)) + b"\r\n",
    b"GET /" + b"x" * (70 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
])  # fmt: skip
def test_huge_headers_are_431(quick: RunningServer, head: bytes) -> None:
    with quick.connect() as sock:
        for i in range(0, len(head), 4096):
            try:
                sock.sendall(head[i : i + 4096])
            except OSError:
                break
            time.sleep(0.001)
        raw, seconds = until_closed(sock)
    if raw:  # a reset may overtake the answer while the client is still sending
        status = answer(raw)[0]
        # A line that came at once is read before its length counts: then the connection is kept, too.
        assert (status == 431 and seconds < 3) or (status == 404 and head.startswith(b"GET /x"))
    alive(quick)


def test_a_huge_body_is_413_and_the_answer_arrives(quick: RunningServer) -> None:
    data = b" " * (9 << 20)
    chunks = b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(144)) + b"0\r\n\r\n"
    for framing in (
        b"Content-Length: %d\r\n\r\n" % len(data) + data, b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
    ):  # fmt: skip
        with quick.connect() as sock:
            sender = threading.Thread(target=lambda s=sock, f=framing: s.sendall(POST + f))
            sender.start()
            raw = b""
            while b"\r\n\r\n" not in raw or not raw.endswith(b"}}"):
                raw += sock.recv(65536)
            sender.join(10)
        status, error = answer(raw)
        assert (status, error["code"]) == (413, "request_too_large")
    alive(quick)


def test_a_refused_body_is_not_read_for_ever(quick: RunningServer) -> None:
    stop = threading.Event()
    with quick.connect() as sock:
        sock.sendall(POST + b"Content-Length: 99999999999\r\n\r\n")
        thread = threading.Thread(target=drip, args=(sock, b" " * 400, stop))
        thread.start()
        raw, seconds = until_closed(sock)
        stop.set()
        thread.join()
    assert answer(raw)[0] == 413 and seconds < 3


@pytest.mark.parametrize("raw", [
    b"nonsense\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
    GET + b"Content-Length: x\r\n\r\n", GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    GET + b"Host: evil.example\r\n\r\n", GET + b"A b: c\r\n\r\n", GET + b"A: \x00\r\n\r\n",
    POST + b"Transfer-Encoding: gzip\r\n\r\n", POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    POST + b"Transfer-Encoding: identity\r\n\r\n", GET.replace(b"/1.1", b"/2.0") + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
])  # fmt: skip
def test_malformed_requests_are_answered_and_closed(quick: RunningServer, raw: bytes) -> None:
    with quick.connect() as sock:
        sock.sendall(raw)
        reply, seconds = until_closed(sock)
    assert seconds < 3
    status, error = answer(reply)
    assert status == 400 and error["code"] == "malformed_request"
    assert set(error) == {"message", "type", "param", "code"} and b"Traceback" not in reply
    alive(quick)


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("head", [
    POST + b"Content-Length: 4\r\n" + CHUNKED, POST + CHUNKED + b"Content-Length: 5\r\n",
    POST + b"Content-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n",
    POST.replace(b"/1.1", b"/1.0") + b"Connection: keep-alive\r\n" + CHUNKED,
])  # fmt: skip
def test_a_length_that_readers_may_disagree_about_cannot_smuggle_a_request(
    quick: RunningServer, head: bytes
) -> None:
    inner = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with quick.connect() as sock:
        sock.sendall(head + b"\r\n0\r\n\r\n" + inner)
        reply, seconds = until_closed(sock)
    assert answer(reply)[0] == 400 and seconds < 3
    assert reply.count(b"\r\n\r\n") == 1 and b'"object":"list"' not in reply
    alive(quick)


def chunked(data: bytes, size: int) -> bytes:
    """A chat request with ``data`` in chunks of ``size`` bytes."""
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    return POST + CHUNKED + b"\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def test_a_body_in_endless_crumbs_is_refused_and_does_not_stop_the_others(quick: RunningServer) -> None:
    body = json.dumps(chat_body("chain")).encode()
    for kept in (body, body.ljust(MAX_CHUNKS)):  # both within the limit
        with quick.connect() as sock:
            sock.sendall(chunked(kept, 1).replace(CHUNKED, CHUNKED + b"Connection: close\r\n") + b"0\r\n\r\n")
            assert b'"content":"one two "' in until_closed(sock)[0]
    longest = 0.0
    with quick.connect() as sock:
        sender = threading.Thread(target=send_all, args=(sock, chunked(b" " * 1_000_000, 1)))
        sender.start()
        while sender.is_alive():
            start = time.monotonic()
            assert quick.get("/health").status == 200
            longest = max(longest, time.monotonic() - start)
        sender.join()
    assert longest < 1.0
    with quick.connect() as sock:
        sock.sendall(chunked(b" " * (MAX_CHUNKS + 1), 1))
        status, error = answer(until_closed(sock)[0])
    assert (status, error["code"]) == (400, "malformed_request")


def send_all(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server may close first
        sock.sendall(data)


def test_pipelined_requests_are_answered_in_order(quick: RunningServer) -> None:
    with quick.connect() as sock:
        sock.sendall(GET + b"\r\n" + GET.replace(b"/health", b"/v1/models") + b"Connection: close\r\n\r\n")
        reply, _ = until_closed(sock)
    assert reply.index(b'"status":"ok"') < reply.index(b'"object":"list"')


def test_garbage_behind_a_stream_does_not_break_it(quick: RunningServer) -> None:
    data = json.dumps(chat_body("chain", stream=True)).encode()
    with quick.connect() as sock:
        sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(data) + data + b"\x00garbage\r\n\r\n")
        reply, _ = until_closed(sock)
    assert b"data: [DONE]" in reply
    assert not [line for line in quick.log if "Traceback" in line]
    alive(quick)


def test_a_client_that_takes_nothing_is_cut_off(
    quick: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small windows on both sides, many pipelined answers: the server's buffer fills and stays full."""
    real = GuardedProtocol.connection_made

    def connection_made(self: GuardedProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        real(self, transport)

    monkeypatch.setattr(GuardedProtocol, "connection_made", connection_made)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(0.2)
        sock.connect(("127.0.0.1", quick.port))
        start, closed = time.monotonic(), False
        while time.monotonic() - start < TIMEOUT and not closed:
            try:
                sock.sendall((GET + b"\r\n") * 1000)
            except (TimeoutError, OSError) as error:
                closed = not isinstance(error, TimeoutError)
        assert closed
    alive(quick)


def test_websocket_upgrades_are_plain_http(quick: RunningServer) -> None:
    reply = quick.raw(GET + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n")
    assert b"200 OK" in reply
