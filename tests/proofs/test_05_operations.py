"""Proofs 6 and 7 of list 05: a server that cannot serve says so, and one that is told to end ends well."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rase.store import open_store
from tests.support import toys
from tests.support.http_process import ServerProcess, serving
from tests.support.http_server import chat_body

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

WORDS = ["one ", "two ", "three ", "four "]
ROUNDS, DRAIN_S = 50, 1.0
# SIGUSR1 plants the fault.
_FAULTY = """
import signal, sys, threading
from rase.engine.batching import Batching
from rase.backends.cpu import CpuProgram
from rase.server.serve import serve

def plant(*_):
    hang = lambda *_: threading.Event().wait()
    if {place!r} == "step":
        Batching.step = hang
    else:
        CpuProgram.run = hang

signal.signal(signal.SIGUSR1, plant)
sys.exit(serve({store!r}, models=["endless"], port=0, drain_s=1.0))
"""
_SERVE = """
import sys
from rase.server.serve import serve
sys.exit(serve({store!r}, port=0, drain_s={drain}, queue_limit=16))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``chain`` says four words and ends; ``endless`` never does."""
    folder = tmp_path_factory.mktemp("operations")
    registry = open_store(folder / "store")
    tokenizer = toys.toy_bpe(pieces=WORDS)
    registry.import_local("chain", toys.chain(folder, WORDS, tokenizer=tokenizer, name="chain"))
    endless = toys.chain(
        folder, WORDS, then=WORDS[0], tokenizer=tokenizer, name="endless", context_length=200_000
    )
    registry.import_local("endless", endless)
    return folder / "store"


def ready(port: int) -> int:
    """The status of /ready; 0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def unready_after(port: int, event: float) -> float:
    """Seconds from ``event`` until /ready no longer says yes."""
    while ready(port) == 200:
        assert time.monotonic() - event < 10, "it never said no"
        time.sleep(0.02)
    return time.monotonic() - event


@contextlib.contextmanager
def faulty(store: Path, place: str) -> Iterator[ServerProcess]:
    code = _FAULTY.format(store=str(store), place=place)
    with serving(store, command=["-c", code]) as server:
        assert ready(server.port) == 200
        yield server


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("place", ["step", "run"])
def test_a_stopped_scheduler(store: Path, place: str, busy: bool, figure) -> None:
    """Between steps or inside of one, idle (it is the next request that it stops with) or with a stream."""
    with faulty(store, place) as server, contextlib.ExitStack() as stack:

        def stream() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            stack.callback(connection.close)
            body = json.dumps(chat_body("endless", stream=True, max_tokens=100_000))
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})

        if busy:
            stream()
            time.sleep(0.3)
        event = time.monotonic()
        server.process.send_signal(signal.SIGUSR1)
        if not busy:
            stream()
        late = unready_after(server.port, event)
        figure(f"stopped in {place}, {'with a stream' if busy else 'idle'}: unavailable after {late:.2f} s")
        assert late < 2.0


def test_readiness_during_start_and_drain(store: Path, figure) -> None:
    with serving(store, drain_s=3.0) as server:
        assert ready(server.port) == 200
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        body = json.dumps(chat_body("endless", stream=True, max_tokens=100_000))
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        event = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        late = unready_after(server.port, event)
        assert server.process.poll() is None and response.status == 200, "it drains"
        figure(f"told to end: unavailable after {late:.2f} s")
        assert late < 2.0 and server.ended() == 0
        connection.close()


async def one(port: int, model: str, stream: bool) -> str:
    """How a request ended: done, error, refused, cut, or nothing where no byte of an answer came."""
    data = json.dumps(chat_body(model, stream=stream, max_tokens=100_000)).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    answer = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + data)
        await writer.drain()
        while part := await reader.read(1 << 16):
            answer += part
        writer.close()
    except OSError:
        if not answer:
            return "nothing"
    status = answer.split(b"\r\n")[0]
    if not answer:
        return "nothing"
    if b" 503 " in status:
        return "refused"
    if b"text/event-stream" in answer[:1000]:
        tail = answer[-600:]
        whole = answer.endswith(b"0\r\n\r\n")
        ended = "done" if b"data: [DONE]" in tail else "error" if b'data: {"error":' in tail else "cut"
        return ended if whole else "cut"
    return "done" if b" 200 " in status and answer.rstrip().endswith(b"}") else "cut"


async def load(server: ServerProcess, rng: random.Random, wait: float) -> tuple[list[str], float]:
    """Clients that ask one thing after the other until nobody answers; a signal after ``wait`` seconds."""
    over = asyncio.Event()

    async def client(model: str, stream: bool) -> list[str]:
        found = []
        while not over.is_set():
            found.append(await one(server.port, model, stream))
            await asyncio.sleep(0.01)
        return found

    kinds = (
        [("endless", True)] * 8 + [("chain", True)] * 8 + [("chain", False)] * 4 + [("endless", False)] * 2
    )
    clients = [asyncio.create_task(client(*kind)) for kind in kinds]
    await asyncio.sleep(wait)
    server.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    over.set()
    outcomes = [outcome for found in await asyncio.gather(*clients) for outcome in found]
    await asyncio.to_thread(server.process.wait, 30)
    return outcomes, time.monotonic() - begin


def test_every_stream_ends_well(store: Path, figure) -> None:
    """Fifty servers, each told to end at another moment of the same load."""
    rng = random.Random(5)
    outcomes: dict[str, int] = {}
    slowest = 0.0
    for _ in range(ROUNDS):
        code = _SERVE.format(store=str(store), drain=DRAIN_S)
        with serving(store, command=["-c", code]) as server:
            found, seconds = asyncio.run(load(server, rng, rng.uniform(0.0, 1.5)))
            assert server.ended() == 0 and "Traceback" not in "".join(server.stderr)
        assert "cut" not in found, found
        slowest = max(slowest, seconds)
        for outcome in found:
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    figure(f"{ROUNDS} of {ROUNDS} ended with status 0; {words}; at most {slowest:.2f} s after the signal")
    assert outcomes["error"] > ROUNDS and outcomes["done"] > ROUNDS
    assert slowest < DRAIN_S + 1.0
