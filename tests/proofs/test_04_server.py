"""Proofs 6 and 8 of list 04: a server process under a crowd, and left alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rase.store import open_store
from tests.support import toys
from tests.support.http_process import ServerProcess, serving
from tests.support.http_server import chat_body

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

CROWD, LEAVERS = 1000, 2000
WORDS = ["one ", "two ", "three ", "four "]
_SERVE = """
import sys
from rase.server.serve import serve
sys.exit(serve(sys.argv[1], port=0, queue_limit=int(sys.argv[2])))
"""
_WATCH = """
import http.client, json, select, sys, time
found = []
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", {port}, timeout=30)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    found.append(time.perf_counter() - begin)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``chain`` says four words and ends; ``endless`` never does."""
    folder = tmp_path_factory.mktemp("crowd")
    registry = open_store(folder / "store")
    tokenizer = toys.toy_bpe(pieces=WORDS)
    registry.import_local("chain", toys.chain(folder, WORDS, tokenizer=tokenizer, name="chain"))
    endless = toys.chain(
        folder, WORDS, then=WORDS[0], tokenizer=tokenizer, name="endless", context_length=200_000
    )
    registry.import_local("endless", endless)
    return folder / "store"


@contextmanager
def server_of(store: Path, limit: int) -> Iterator[ServerProcess]:
    with serving(store, command=["-c", _SERVE, str(store), str(limit)]) as server:
        yield server


def post(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def exchange(port: int, data: bytes) -> tuple[bytes, float]:
    """Everything that the server answers, and the seconds to its first byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    writer.write(data)
    await writer.drain()
    head = await reader.read(1)
    first = time.perf_counter() - begin
    answer = head + await reader.read()
    writer.close()
    return answer, first


def text_of(answer: bytes) -> str:
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def crowd(port: int) -> list[tuple[bytes, float]]:
    """A thousand chats at once."""
    data = post(chat_body("chain", stream=True))
    return await asyncio.gather(*(exchange(port, data) for _ in range(CROWD)))


@contextmanager
def watching(port: int) -> Iterator[list[float]]:
    """How long /health takes, every 20 ms, seen by a process of its own; filled in at the end."""
    code = _WATCH.format(port=port)
    latencies: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield latencies
        latencies += json.loads(process.communicate("\n")[0])


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@pytest.mark.parametrize("limit", [1000, 32])
def test_a_crowd(store: Path, limit: int, figure) -> None:
    with server_of(store, limit) as server:
        warm, _ = asyncio.run(exchange(server.port, post(chat_body("chain", stream=True))))
        assert text_of(warm) == "".join(WORDS)
        with watching(server.port) as latencies:
            answers = asyncio.run(crowd(server.port))
    admitted = [answer for answer, _ in answers if answer.split(b"\r\n")[0].endswith(b"200 OK")]
    refused = [(answer, first) for answer, first in answers if b" 503 " in answer.split(b"\r\n")[0]]
    assert len(admitted) + len(refused) == CROWD
    assert all(text_of(answer) == "".join(WORDS) and b"data: [DONE]" in answer for answer in admitted)
    assert all(b"retry-after" in answer.lower() for answer, _ in refused)
    p99 = percentile(latencies, 0.99)
    times = [first for _, first in refused]
    figure(
        f"queue of {limit}: {len(admitted)} right answers, {len(refused)} refused"
        + (f" (median {1e3 * statistics.median(times):.0f} ms)" if times else "")
        + f"; /health p99 {1e3 * p99:.0f} ms"
    )
    assert p99 < 0.25
    assert len(admitted) == CROWD if limit == 1000 else len(admitted) >= limit


def test_a_full_queue_refuses_at_once(store: Path, figure) -> None:
    """Places and queue are taken by answers that do not end; whoever comes then is told within 50 ms.

    One by one; of 500 who come together the last ones wait for the others, much less than for answers.
    """

    async def run(port: int) -> tuple[list[float], list[float]]:
        endless = post(chat_body("endless", stream=True, max_tokens=100_000))
        taken = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64 + 32)]
        for _, writer in taken:
            writer.write(endless)
        await asyncio.gather(*(reader.read(1) for reader, _ in taken[:64]))
        await asyncio.sleep(0.5)
        times = []
        for _ in range(50):
            answer, first = await exchange(port, endless)
            assert b" 503 " in answer.split(b"\r\n")[0] and b"retry-after" in answer.lower()
            times.append(first)
        together = await asyncio.gather(*(exchange(port, endless) for _ in range(500)))
        assert all(b" 503 " in answer.split(b"\r\n")[0] for answer, _ in together)
        for _, writer in taken:
            writer.close()
        return times, [first for _, first in together]

    with server_of(store, 32) as server:
        times, together = asyncio.run(run(server.port))
    figure(
        f"503 within {1e3 * statistics.median(times):.0f} ms (median), {1e3 * max(times):.0f} ms at most; "
        f"500 at once {1e3 * statistics.median(together):.0f} ms, {1e3 * max(together):.0f} ms"
    )
    assert percentile(times, 0.9) < 0.05
    assert percentile(together, 0.9) < 0.5


def test_leaving_at_any_byte(store: Path, figure) -> None:
    """Two thousand clients leave after a random number of bytes: the queue is empty soon, and all is well."""
    rng = random.Random(4)

    async def leave(port: int, data: bytes, count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)
        with contextlib.suppress(TimeoutError, OSError):
            await writer.drain()
            await asyncio.wait_for(reader.read(count), 0.3)
        writer.transport.abort()

    async def active(port: int) -> int:
        answer, _ = await exchange(
            port, b"GET /v1/ps HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        return sum(model["active"] for model in json.loads(answer.split(b"\r\n\r\n", 1)[1])["data"])

    async def run(port: int) -> float:
        data = post(chat_body("endless", stream=True, max_tokens=100_000))
        for _ in range(LEAVERS // 50):
            await asyncio.gather(*(leave(port, data, rng.randint(1, 3000)) for _ in range(50)))
        begin = time.perf_counter()
        while await active(port):
            await asyncio.sleep(0.01)
            assert time.perf_counter() - begin < 20
        empty = time.perf_counter() - begin
        for _ in range(100):
            answer, _ = await exchange(port, post(chat_body("chain", stream=True)))
            assert text_of(answer) == "".join(WORDS)
        return empty

    with server_of(store, 1000) as server:
        empty = asyncio.run(run(server.port))
        assert "Traceback" not in "".join(server.stderr)
    figure(f"{LEAVERS} clients left; nothing ran any more after {empty:.2f} s, and 100 answers were right")
    assert empty < 2


def test_idle(store: Path, figure) -> None:
    with server_of(store, 32) as server:
        asyncio.run(exchange(server.port, post(chat_body("chain"))))
        time.sleep(1)
        clock = (~server.process.pid << 3) | 2  # of all its threads, in nanoseconds: clock_getcpuclockid(3)
        before = time.clock_gettime(clock)
        time.sleep(10)
        used = time.clock_gettime(clock) - before
    figure(f"a loaded server used {1e3 * used:.0f} ms of processor time in 10 s")
    assert used < 0.02
