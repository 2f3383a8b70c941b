"""Proof 5 of list 05: two replicas that Ray runs serve as one process does, and outlive each other.

One cluster for all tests, as ``rase cluster run`` starts it: SmolLM2 and a toy, two replicas each, which
take four requests each; two more may wait.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rase.registry import ModelRegistry
from tests.server.test_openai_client import (  # noqa: F401  # these run here, against the cluster
    client,
    test_chat,
    test_chat_stream,
    test_completions,
    test_errors_are_the_clients_classes_and_are_not_repeated,
    test_extensions_in_extra_body,
    test_structured_output_fails_closed,
    test_the_async_client,
    test_the_stream_helper,
)
from tests.support import toys
from tests.support.http_server import chat_body, running
from tests.support.ray_cluster import Cluster, until

pytest.importorskip("ray")
pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]

WORDS = ("alpha ", "be", "ta ga", "mma", " delta")
REAL = "smollm2"
SEQS, QUEUE = 4, 2
TOPICS = ("rivers", "bridges", "bread", "clocks", "maps", "glass")


def prompt(topic: str) -> str:
    return (
        f"About {topic}. "
        + f"A careful text about {topic} names what they are made of and who made them. " * 12
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    chain = toys.chain(folder, WORDS, tokenizer=toys.toy_bpe(words=WORDS))
    return {"chain": chain, REAL: smollm2}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("store")
    registry = ModelRegistry.open(folder)
    for name, path in models.items():
        registry.import_local(name, path)
    return folder


@pytest.fixture(scope="module")
def server(store: Path, models: dict[str, Path]) -> Iterator[Cluster]:
    command = [
        sys.executable, "-m", "rase", "cluster", "run", *models, "--replicas", "2", "--replica-cpus", "1",
        "--port", "0", "--store", str(store), "--max-batch-seqs", str(SEQS), "--max-queue", str(QUEUE),
        "--drain-timeout", "2", "--kv-cache", "256MiB",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield Cluster(process)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        if process.poll() is None:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
        process.wait(10)


def long_stream(topic: str, **fields: Any) -> dict[str, Any]:
    return chat_body(REAL, prompt(topic), stream=True, ignore_eos=True, **fields)


def events_of(body: bytes) -> list[Any]:
    """The events of a stream that may have ended with an error."""
    blocks = [block for block in body.split(b"\n\n") if block.startswith(b"data: {")]
    return [json.loads(block[6:]) for block in blocks]


def text_of(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "") for e in events if "choices" in e for choice in e["choices"]
    )


def test_models_and_what_every_answer_has(server: Cluster) -> None:
    assert {one["id"] for one in server.get("/v1/models").json["data"]} == {"chain", REAL}
    until(lambda: len(server.replicas(REAL)) == 2 == len(server.processes(REAL)))
    until(lambda: server.get("/ready").status == 200)
    headers = {"Content-Type": "application/json", "X-Request-Id": "mine-1"}
    answer = server.post("/v1/chat/completions", chat_body("chain"), headers)
    assert answer.status == 200 and answer.headers["x-request-id"] == "mine-1"
    assert server.get("/v1/models").headers["x-request-id"]
    assert (server.get("/v1/nothing").status, server.get("/v1/nothing").error["code"]) == (404, "not_found")
    assert server.post("/v1/embeddings", {}).error["code"] == "not_found", "as without a cluster"
    late = server.chat(REAL, prompt("clocks"), max_tokens=2000, ignore_eos=True, timeout=0.5)
    assert (late.status, late.error["code"]) == (504, "deadline_exceeded")
    wrong = server.request("POST", "/v1/chat/completions", b"{", {"Content-Type": "application/json"})
    assert (wrong.status, wrong.error["type"]) == (400, "invalid_request_error")
    assert any("id=mine-1" in line for line in server.log)


def test_the_bits_of_one_process(
    server: Cluster, models: dict[str, Path], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Many at a time here, one after the other there."""
    asked = [
        ("/v1/chat/completions", chat_body(
            REAL, prompt(topic), max_tokens=24, temperature=temperature, seed=seed, logprobs=True,
            top_logprobs=4))
        for topic in TOPICS[:3] for temperature, seed in ((0, 0), (0.9, 7))
    ] + [
        ("/v1/completions", {
            "model": REAL, "prompt": ["Once", "The river"], "max_tokens": 12, "temperature": 0.7, "seed": 5,
            "logprobs": 3, "n": 2})
    ]  # fmt: skip
    with ThreadPoolExecutor(6) as pool:
        found = [answer.json for answer in pool.map(lambda one: server.post(*one), asked)]
    streams = [text_of(server.chat_events(REAL, prompt(topic), max_tokens=24)) for topic in TOPICS[:3]]
    with running(tmp_path, {REAL: models[REAL]}) as single:
        right = [single.post(*one).json for one in asked]
    for one, other in zip(found, right, strict=True):
        assert one["choices"] == other["choices"] and one["system_fingerprint"] == other["system_fingerprint"]
    assert streams == [one["choices"][0]["message"]["content"] for one in right[:6:2]]
    count = sum(one["usage"]["completion_tokens"] for one in found)
    figure(f"{count} tokens and their logprobs as of one process")


def test_equal_prefixes_stay_on_one_replica(server: Cluster, figure: Callable[[str], None]) -> None:
    homes: dict[str, set[str]] = {topic: set() for topic in TOPICS}
    before = server.samples("tokens_cached_total", REAL)
    for turn in range(4):
        for topic in TOPICS:
            counts = Counter(server.samples("requests_finished_total", REAL))
            assert server.chat(REAL, prompt(topic) + f"Question {turn}?", max_tokens=2).status == 200
            until(lambda counts=counts: Counter(server.samples("requests_finished_total", REAL)) != counts)
            (home,) = Counter(server.samples("requests_finished_total", REAL)) - counts
            homes[topic].add(home)
    assert all(len(replicas) == 1 for replicas in homes.values()), homes
    loads = Counter(home for (home,) in homes.values())
    assert len(loads) == 2 and max(loads.values()) <= 4
    cached = {one: value - before[one] for one, value in server.samples("tokens_cached_total", REAL).items()}
    assert all(value > 0 for value in cached.values())
    figure(f"6 prefixes, 4 rounds: {dict(loads)}; tokens from each cache: {sorted(cached.values())}")


def test_tokens_come_as_they_are_made(server: Cluster, figure: Callable[[str], None]) -> None:
    with server.send("/v1/chat/completions", long_stream("maps", max_tokens=120)) as sock:
        began, times = time.monotonic(), []
        while data := sock.recv(1 << 16):
            times += [time.monotonic() - began] if b"content" in data else []
            if b"[DONE]" in data:
                break
    assert len(times) > 10 and times[0] < times[-1] / 2
    figure(f"first piece after {times[0]:.2f} s, last after {times[-1]:.2f} s")


def test_a_client_that_leaves_stops_the_engine(server: Cluster, figure: Callable[[str], None]) -> None:
    for how in ("stream", "whole"):
        with server.send(
            "/v1/chat/completions", long_stream("glass", max_tokens=4000) | {"stream": how == "stream"}
        ):
            until(lambda: server.jobs(REAL) == 1)
        left = time.monotonic()
        until(lambda: server.jobs(REAL) == 0)
        figure(f"{how}: stopped {time.monotonic() - left:.2f} s after the client left")
    made = sum(server.samples("tokens_generated_total", REAL).values())
    time.sleep(1)
    assert sum(server.samples("tokens_generated_total", REAL).values()) == made


def test_a_full_queue_is_told_so(server: Cluster) -> None:
    place = 2 * SEQS + QUEUE
    socks = [server.send("/v1/chat/completions", long_stream(f"{n}", max_tokens=4000)) for n in range(place)]
    try:
        until(lambda: server.jobs(REAL) == 2 * SEQS)
        answer = server.chat(REAL)
        assert (answer.status, answer.error["code"]) == (503, "server_busy") and answer.headers["retry-after"]
        assert server.chat("chain").status == 200 and server.get("/ready").status == 200
    finally:
        for sock in socks:
            sock.close()
    until(lambda: server.jobs(REAL) == 0)


def test_a_replica_that_is_killed(server: Cluster, figure: Callable[[str], None]) -> None:
    """What it was computing fails with a typed error; the rest completes, and soon there are two again."""
    bodies = [long_stream(topic, max_tokens=250) for topic in TOPICS]
    bodies[4:] = [body | {"stream": False} for body in bodies[4:]]
    right = [server.chat(REAL, prompt(topic), max_tokens=250, ignore_eos=True) for topic in TOPICS]
    before = server.replicas(REAL)
    victim = server.processes(REAL)[0]
    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(server.post, "/v1/chat/completions", body) for body in bodies]
        until(lambda: server.jobs(REAL) == len(bodies))
        running_on = server.samples("requests_running", REAL)
        victim.kill()
        later = [pool.submit(server.chat, REAL, prompt(topic), max_tokens=4) for topic in TOPICS[:3]]
        answers = [one.result(300) for one in asked]
        assert [one.result(300).status for one in later] == [200] * 3, "what comes later is served"
    lost = 0
    for body, answer, whole in zip(bodies, answers, right, strict=True):
        if body["stream"]:
            events = events_of(answer.body)
            if "error" in events[-1]:
                assert (events[-1]["error"]["code"], events[-1]["error"]["type"]) == (
                    "replica_lost",
                    "server_error",
                )
                assert whole.text.startswith(text_of(events))
                lost += 1
            else:
                assert answer.body.endswith(b"data: [DONE]\n\n") and text_of(events) == whole.text
        elif answer.status == 503:
            assert answer.error["code"] == "replica_lost" and answer.headers["retry-after"]
            lost += 1
        else:
            assert (answer.status, answer.text) == (200, whole.text)
    assert 0 < lost <= max(running_on.values()) < len(bodies), (lost, running_on)
    began = time.monotonic()
    until(lambda: len(server.replicas(REAL)) == 2 and len(before & server.replicas(REAL)) == 1)
    until(lambda: server.get("/ready").status == 200)
    seconds = time.monotonic() - began
    figure(f"{lost} of {len(bodies)} in flight failed; two replicas again after {seconds:.0f} s more")
    for topic, whole in zip(TOPICS, right, strict=True):
        again = server.chat(REAL, prompt(topic), max_tokens=250, ignore_eos=True)
        assert (again.status, again.text) == (200, whole.text)


def test_nobody_else_can_reach_it(server: Cluster) -> None:
    """All listen on loopback, but one port of each replica, which Serve opens: it asks for Ray's token."""
    import grpc

    replicas = {one.pid for model in ("chain", REAL, "ingress") for one in server.processes(model)}
    own = psutil.Process(server.process.pid)
    for one in [own, *own.children(recursive=True)]:
        for connection in one.net_connections("tcp"):
            address = connection.laddr.ip.removeprefix("::ffff:")
            if connection.status != psutil.CONN_LISTEN or address == "127.0.0.1":
                continue
            assert one.pid in replicas, (one.cmdline(), connection)
            with grpc.insecure_channel(f"127.0.0.1:{connection.laddr.port}") as channel:
                call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"", timeout=60)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not any(re.search(r"://\S+:8265\b", line) for line in server.log), "no dashboard"


def test_the_end(server: Cluster, figure: Callable[[str], None]) -> None:
    """SIGTERM: streams end with an error event, the status is 0, and nothing is left. The last test here."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.post, "/v1/chat/completions", long_stream("bread", max_tokens=4000))
        until(lambda: server.jobs(REAL) == 1)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready").status == 503)
        refused = server.chat("chain")
        assert (refused.status, refused.error["code"]) == (503, "server_busy")
        assert events_of(stream.result(60).body)[-1]["error"]["code"] == "server_busy"
    assert server.process.wait(60) == 0
    figure(f"ended {time.monotonic() - began:.1f} s after SIGTERM, status 0")
    _, alive = psutil.wait_procs(children, 20)
    assert not alive
