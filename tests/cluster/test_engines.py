"""The server's duties over replicas: same answers, and what happens when a replica is slow, full or gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rase.errors import ManifestError, ModelNotFound
from tests.cluster.conftest import Cluster, Wire, clustered
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, stream_events, wait_until

WORDS = ("one ", "two ")
LONG = "A long beginning, which some prompts share. " * 12


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A model that never stops; four requests are taken: two replicas, one each, and two that wait."""
    folder = tmp_path_factory.mktemp("small")
    words = toys.toy_bpe(words=WORDS)
    model = toys.chain(folder, WORDS, then=WORDS[0], tokenizer=words, context_length=200_000)
    with clustered(folder, {"endless": model}, together=1, queue=2) as server:
        yield server


@pytest.fixture
def wire(small: Cluster) -> Iterator[Wire]:
    yield small.wires["endless"]
    small.wires["endless"].lose_after = None
    wait_until(lambda: small.jobs("endless") == 0 and running_in(small.wires["endless"]) == 0)


def running_in(wire: Wire) -> int:
    return sum(
        session.scheduler.running for one in wire.replicas.values() for session in one._cache.sessions()
    )


def endless(**fields: Any) -> dict[str, Any]:
    return chat_body("endless", max_tokens=100_000, **fields)


def test_the_answers_of_one_process(server: Cluster, tmp_path: Path) -> None:
    def asked(from_server: RunningServer) -> list[Any]:
        found = []
        for seed in (1, 2):
            fields = {"temperature": 0.8, "seed": seed, "logprobs": True, "top_logprobs": 3, "n": 2}
            whole = from_server.chat("tiny", LONG, max_tokens=12, **fields).json
            events = from_server.chat_events("tiny", LONG, max_tokens=12, **fields)
            found.append([whole["choices"], whole["system_fingerprint"], whole["usage"]["completion_tokens"]])
            found.append([event["choices"] for event in events if event["choices"]])
        several = {
            "model": "tiny",
            "prompt": ["One", "Two"],
            "logprobs": 2,
            "temperature": 0,
            "max_tokens": 6,
        }
        found.append(from_server.post("/v1/completions", several).json["choices"])
        return found

    def in_order(found: list[Any]) -> list[Any]:  # choices of one stream come side by side
        return [sorted(map(json.dumps, one)) if isinstance(one[0], list) else one for one in found]

    with running(tmp_path, {"tiny": toys.tiny_llama(tmp_path)}) as single:
        assert in_order(asked(server)) == in_order(asked(single))


def test_a_beginning_stays_with_its_replica(server: Cluster) -> None:
    wire = server.wires["tiny"]
    wire.seen.clear()
    for _ in range(3):
        for number in range(4):
            server.chat("tiny", f"{number}: {LONG}", max_tokens=1)
    rounds = [wire.seen[start : start + 4] for start in (0, 4, 8)]
    assert rounds[0] == rounds[1] == rounds[2] and len(set(rounds[0])) == 2
    cached = server.chat("tiny", f"3: {LONG}", max_tokens=1).json["usage"]["prompt_tokens_details"]
    assert cached["cached_tokens"] > 0


def test_a_client_that_leaves_stops_the_replica(small: Cluster, wire: Wire) -> None:
    with small.send("/v1/chat/completions", endless(stream=True)) as sock:
        sock.recv(2000)
        wait_until(lambda: running_in(wire) == 1)
    wait_until(lambda: running_in(wire) == 0 and small.jobs("endless") == 0, 5)


def test_a_full_queue_is_told_so(small: Cluster, wire: Wire) -> None:
    socks = [small.send("/v1/chat/completions", endless(stream=True)) for _ in range(4)]
    try:
        wait_until(lambda: small.jobs("endless") == 4)
        answer = small.chat("endless")
        assert (answer.status, answer.error["code"]) == (
            503,
            "server_busy",
        ) and "retry-after" in answer.headers
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("stream", [False, True])
def test_deadlines(small: Cluster, wire: Wire, stream: bool) -> None:
    began = time.monotonic()
    answer = small.post("/v1/chat/completions", endless(stream=stream, timeout=0.3))
    assert 0.3 <= time.monotonic() - began < 2
    if not stream:
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    else:
        last = answer.body.split(b"\n\n")[-2]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "deadline_exceeded"


def test_a_lost_replica_is_503_or_an_error_event(small: Cluster, wire: Wire) -> None:
    for lost in (0, 1):
        wire.lose_after = lost
        answer = small.chat("endless", max_tokens=5)
        assert (answer.status, answer.error["code"]) == (503, "replica_lost"), lost
        assert "retry-after" in answer.headers
    wire.lose_after = 2
    body = small.post("/v1/chat/completions", endless(stream=True)).body
    events = [json.loads(block.removeprefix(b"data: ")) for block in body.split(b"\n\n")[:-1]]
    assert events[0]["choices"] and events[-1]["error"]["code"] == "replica_lost"
    wire.lose_after = None
    assert small.chat("endless", max_tokens=2).text == "one two "


def test_bad_requests_never_reach_a_replica(server: Cluster) -> None:
    wire = server.wires["chain"]
    wire.seen.clear()
    absent, bad = server.chat("absent"), server.chat("chain", temperature=-1)
    assert (absent.status, absent.error["code"]) == (404, "model_not_found")
    assert (bad.status, bad.error["param"]) == (400, "temperature") and wire.seen == []
    long = server.chat("chain", "word " * 5000)  # what only the model can judge comes back typed
    assert (long.status, long.error["code"], long.error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    named = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    assert named.status == 400 and named.error["param"] == "model"


def test_what_the_server_says_of_its_replicas(server: Cluster) -> None:
    server.chat("chain")
    assert {model["id"] for model in server.get("/v1/models").json["data"]} == {"chain", "dice", "tiny"}
    loaded = server.get("/v1/ps").json["data"]
    assert {one["replica"] for one in loaded} >= {"chain-0", "chain-1", "tiny-0"} and len(loaded) == 6
    metrics = server.get("/metrics").body.decode()
    assert (
        metrics.count("# TYPE rase_requests_finished_total") + metrics.count("# TYPE rase_build_info ") <= 2
    )
    assert 'replica="chain-0"' in metrics and 'rase_http_requests_total{method="POST",route="chat"' in metrics
    assert 'rase_build_info{version="' in metrics and 'rase_build_info{replica="dice-1",version="' in metrics
    summary = server.get("/metrics/system").json
    assert {one["replica"] for one in summary["models"]} >= {"tiny-0", "tiny-1"}


def test_ready_while_one_replica_of_each_model_is(server: Cluster) -> None:
    assert server.get("/ready").status == 200
    wire, hold = server.wires["chain"], threading.Event()
    schedulers = [session.scheduler for one in wire.replicas.values() for session in one._cache.sessions()]
    try:
        schedulers[0]._post(lambda: hold.wait(60))
        assert server.get("/ready").status == 200
        schedulers[1]._post(lambda: hold.wait(60))
        assert server.get("/ready").json["reasons"] == ["no replica of a model answers"]
    finally:
        hold.set()
    wait_until(lambda: server.get("/ready").status == 200)


def test_the_drain_ends_every_request(tmp_path: Path) -> None:
    import asyncio

    words = toys.toy_bpe(words=WORDS)
    model = toys.chain(tmp_path, WORDS, then=WORDS[0], tokenizer=words, context_length=200_000)
    with (
        clustered(tmp_path, {"endless": model}) as server,
        server.send("/v1/chat/completions", endless(stream=True)) as sock,
    ):
        first = sock.recv(4000)
        engines = server.app.state.runner
        loop = engines._postbox._loop()
        done = asyncio.run_coroutine_threadsafe(engines.drain(0.3), loop)
        wait_until(lambda: engines.draining)
        assert server.chat("endless").status == 503 and server.get("/ready").status == 503
        began = time.monotonic()
        done.result(5)
        assert time.monotonic() - began < 1.5 and engines.active == 0
        rest = b""
        while b"server_busy" not in rest:
            rest += sock.recv(1 << 16)
        assert b"HTTP/1.1 200" in first


def test_another_model_under_the_same_id_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    from rase.cluster.config import Config
    from rase.cluster.replica import Replica
    from rase.registry import ModelRegistry

    registry = ModelRegistry.open(tmp_path / "store")
    manifest = registry.import_local("one", toys.chain(tmp_path, ["a", "b"])).manifest
    config = Config(models=("one",), given={"RASE_STORE": str(tmp_path / "store")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RASE_STORE", "")
        patch.setenv("RASE_NUM_THREADS", "1")
        with pytest.raises(ManifestError, match="another one: sha256"):
            Replica(config, replace(manifest, sha256="0" * 64))
        with pytest.raises(ModelNotFound):
            Replica(config, replace(manifest, id="two"))


def test_a_stream_comes_piece_by_piece(small: Cluster, wire: Wire) -> None:
    events = stream_events(
        small.post("/v1/chat/completions", chat_body("endless", stream=True, max_tokens=40)).body
    )
    assert len(events) > 5 and events[0]["choices"][0]["delta"]["role"] == "assistant"
