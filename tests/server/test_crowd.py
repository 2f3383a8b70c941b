"""Crowds and slow readers: who comes late is heard, a full queue says so, who does not read delays nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from rase.engine.drafts import DRAFT_ROWS
from rase.server import job as jobs
from rase.server import runner as lanes
from rase.server.protocol import GuardedProtocol
from rase.server.reception import ENTER, Reception
from rase.server.serve import Server
from rase.server.transport import FULL, GatheringTransport
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, wait_until

WORDS = ["one ", "two "]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """``endless`` does not stop by itself; one request runs at a time and two wait."""
    folder = tmp_path_factory.mktemp("crowded")
    chain = toys.chain(
        folder, WORDS, then=WORDS[0], tokenizer=toys.toy_bpe(words=WORDS), context_length=200_000
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RASE_MAX_BATCH_SEQS", "1")
        with running(folder, {"endless": chain}, queue_limit=2) as server:
            yield server


def test_a_few_requests_enter_in_a_turn_in_order() -> None:
    entered: list[int] = []

    async def crowd() -> list[int]:
        reception, turns = Reception(), []
        for number in range(3 * ENTER + 1):
            reception.wait(lambda number=number: entered.append(number))
        assert not entered
        while len(entered) < 3 * ENTER + 1:
            await asyncio.sleep(0)
            turns.append(len(entered))
        return turns

    assert asyncio.run(crowd()) == [ENTER, 2 * ENTER, 3 * ENTER, 3 * ENTER + 1]
    assert entered == sorted(entered)


def test_a_get_walks_past_a_crowd_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reception, "_let_in", lambda self: None)  # nobody enters
    with running(tmp_path, {}) as server, server.send("/v1/chat/completions", chat_body("any")) as sock:
        assert server.get("/health").status == 200
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_a_server_without_connections_sleeps_and_still_knows_the_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[Server] = []  # of other tests' servers, too
    real = Server.on_tick

    async def on_tick(self: Server, counter: int) -> bool:
        ticks.append(self)
        return await real(self, counter)

    monkeypatch.setattr(Server, "on_tick", on_tick)
    with running(tmp_path, {}) as server:
        time.sleep(2.2)
        assert ticks.count(server.server) == 1
        date = parsedate_to_datetime(server.get("/health").headers["date"])
        assert abs(date.timestamp() - time.time()) < 1.5 and ticks.count(server.server) >= 2


class Wire:
    """Stands for an asyncio transport."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.sent.append(b"<closed>")

    def abort(self) -> None:
        self.sent.append(b"<aborted>")


def test_what_one_turn_writes_leaves_in_one_piece() -> None:
    async def write() -> None:
        wire = Wire()
        transport = GatheringTransport(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
        for part in (b"head ", b"body ", b"end"):
            transport.write(part)
        assert wire.sent == []
        await asyncio.sleep(0)
        assert wire.sent == [b"head body end"]
        transport.write(b"x" * FULL)
        assert len(wire.sent) == 2, "much is handed on at once"
        transport.write(b"last")
        transport.close()
        assert wire.sent[2:] == [b"last", b"<closed>"]
        transport.write(b"never")
        transport.abort()
        await asyncio.sleep(0)
        assert wire.sent[4:] == [b"<aborted>"]

    asyncio.run(write())


def test_a_full_queue_refuses_before_it_reads_the_request(
    crowded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(3):
            stack.enter_context(crowded.send("/v1/chat/completions", endless()))
            wait_until(lambda n=number: crowded.jobs("endless") == n + 1)
        monkeypatch.setattr("rase.server.app.read_chat", lambda body: pytest.fail("it was read"))
        answer = crowded.chat("endless", "word " * 1000)
        assert answer.status == 503 and answer.headers["retry-after"]
    wait_until(lambda: crowded.jobs("endless") == 0)


def endless(**fields: Any) -> dict[str, Any]:
    return chat_body("endless", **{"max_tokens": 150_000, "stream": True, **fields})


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections whose server side buffers little."""
    real = GuardedProtocol.connection_made

    def connection_made(self: GuardedProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        real(self, transport)

    monkeypatch.setattr(GuardedProtocol, "connection_made", connection_made)


def test_a_client_that_does_not_read_stops_its_own_answer_only(crowded: RunningServer, narrow: None) -> None:
    body = json.dumps(endless(max_tokens=3000)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", crowded.port))
        sock.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: crowded.jobs("endless") == 1)
        (slow,) = crowded.app.state.runner._lanes["endless"].jobs
        wait_until(lambda: len(slow._pieces) >= jobs.AHEAD)
        # The one place of the batch is free, and what is kept does not grow.
        for _ in range(3):
            assert crowded.chat("endless", max_tokens=2).text == "one two "
            assert len(slow._pieces) < jobs.AHEAD + DRAFT_ROWS
        assert not slow.done.done()
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)
    assert text == "one two " * 1500 and b"data: [DONE]" in raw


def test_a_model_that_is_ahead_before_its_lane_knows_it_goes_on(
    crowded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader takes what there is while the lane's thread has not even noted what it started."""
    real = lanes.start

    def start(*arguments: Any, **options: Any) -> Any:
        running = real(*arguments, **options)
        time.sleep(0.3)
        return running

    monkeypatch.setattr(lanes, "start", start)
    began = time.monotonic()
    events = crowded.chat_events("endless", max_tokens=5 * jobs.AHEAD)
    assert time.monotonic() - began < 5, "it waited for the next ping"
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert text.count(" ") == 5 * jobs.AHEAD


def test_a_stream_that_speaks_sends_no_pings(tmp_path: Path) -> None:
    chain = toys.chain(
        tmp_path, WORDS, then=WORDS[0], tokenizer=toys.toy_bpe(words=WORDS), context_length=200_000
    )
    with running(tmp_path, {"endless": chain}, ping_s=0.1) as server:
        with server.send("/v1/chat/completions", endless()) as sock:
            seen, end = b"", time.monotonic() + 0.5
            while time.monotonic() < end:
                seen += sock.recv(1 << 16)
        assert b": ping" not in seen and seen.count(b"data: ") > 20
        wait_until(lambda: server.jobs("endless") == 0)


def test_calls_of_many_threads_reach_the_loop_in_order_and_wake_it_seldom() -> None:
    async def main() -> None:
        postbox, found, rings = jobs.Postbox(), [], []
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (rings.append(1), real(*call))[1]  # type: ignore[method-assign, assignment]

        def post(thread: int) -> None:
            for number in range(100):
                assert postbox.post(found.append, (thread, number))

        threads = [threading.Thread(target=post, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the loop hears nothing meanwhile
        assert len(rings) == 1
        await asyncio.sleep(0)
        for thread in range(4):
            assert [number for who, number in found if who == thread] == list(range(100))

    asyncio.run(main())


def test_a_closed_loop_is_told() -> None:
    async def make() -> jobs.Postbox:
        return jobs.Postbox()

    assert not asyncio.run(make()).post(print)
