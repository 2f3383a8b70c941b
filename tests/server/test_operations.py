"""What tells of the server itself: health, readiness, metrics, version; and the limits of what it takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import rase
from rase import metrics
from rase.errors import InvalidSetting
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, wait_until

WORDS = ["one ", "two "]
LATE = 10.0  # seconds; tests/proofs/test_05_operations.py holds 2 s, on a machine that is not as busy


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


def families(server: RunningServer) -> dict[str, Any]:
    answer = server.get("/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.body.decode())}


def value(found: dict[str, Any], sample: str, **labels: str) -> float:
    for family in found.values():
        for one in family.samples:
            if one.name == sample and labels.items() <= one.labels.items():
                return float(one.value)
    raise AssertionError(f"no sample {sample} {labels}")


def test_health_version_and_readiness(server: RunningServer) -> None:
    for path in ("/health", "/healthz"):
        assert server.get(path).json == {"status": "ok"}
    assert server.get("/version").json == {"version": rase.__version__}
    answer = server.get("/ready")
    assert (answer.status, answer.json) == (200, {"status": "ready"})
    assert answer.headers["cache-control"] == "no-store"


def test_metrics_count_what_was_asked(server: RunningServer) -> None:
    server.chat("counted")
    before = families(server)
    for _ in range(3):
        assert server.chat("counted").text == "one two "
    assert server.chat("absent").status == 404
    wait_until(lambda: metrics.of("counted").snapshot().gauges["requests_running"] == 0)
    after = families(server)

    def grown(sample: str, **labels: str) -> float:
        return value(after, sample, **labels) - value(before, sample, **labels)

    here = {"model": "counted"}
    assert grown("rase_requests_finished_total", **here) == 3
    assert grown("rase_tokens_generated_total", **here) == 6
    assert grown("rase_ttft_seconds_count", **here) == 3
    assert grown("rase_ttft_seconds_bucket", le="+Inf", **here) == 3
    assert grown("rase_itl_seconds_count", **here) == 3
    assert value(after, "rase_requests_running", **here) == 0
    assert grown("rase_http_requests_total", method="POST", route="chat", status="200") == 3
    assert value(after, "rase_http_requests_total", method="POST", route="chat", status="404") >= 1
    assert value(after, "rase_kv_cache_pages", group="0", **here) > 0
    assert value(after, "rase_model_weights_bytes", **here) > 0
    assert value(after, "rase_memory_available_bytes") > 1 << 20
    assert value(after, "rase_build_info", version=rase.__version__) == 1
    assert value(after, "process_resident_memory_bytes") > 1 << 20


def test_every_metric_of_the_table_is_exposed_with_its_meaning(server: RunningServer) -> None:
    found = families(server)
    for name, metric in metrics.METRICS.items():
        family = found[f"rase_{name}"]
        assert family.type == metric.kind and family.documentation.lower() == f"{metric.meaning}.".lower()
    for family in found.values():
        assert family.documentation, f"{family.name} is not documented"
        assert family.name.startswith(("rase_", "process_"))


def test_strange_requests_do_not_grow_the_metrics(server: RunningServer) -> None:
    for number in range(20):
        server.request(f"M{number}", f"/path/{number}")
    samples = families(server)["rase_http_requests"].samples
    assert not any(sample.labels["method"].startswith("M") for sample in samples) and len(samples) < 40


def test_the_summary_for_a_console(server: RunningServer) -> None:
    server.chat("counted")
    found = server.get("/metrics/system").json
    (model,) = [model for model in found["models"] if model["id"] == "counted"]
    assert model["finished"] >= 1 and model["tokens_generated"] >= 2 and model["weights"] > 0
    assert found["uptime_s"] >= 0 and found["memory"]["resident"] > 0 and found["http"]["requests"] >= 1
    assert found["version"] == rase.__version__


# Readiness


def ready(server: RunningServer) -> tuple[int, list[str]]:
    answer = server.get("/ready")
    return answer.status, answer.json.get("reasons", [])


def test_a_scheduler_that_stops_is_noticed_and_forgiven(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.chat("counted")
    (session,) = [s for s in server.app.state.runner.cache.sessions() if s.id == "counted"]
    hold = threading.Event()
    session.scheduler._post(lambda: hold.wait(60))  # between two steps
    posts: list[Any] = []
    real = session.scheduler._post
    monkeypatch.setattr(session.scheduler, "_post", lambda message: (posts.append(message), real(message)))
    try:
        start = time.monotonic()
        assert ready(server) == (503, ["the scheduler of a model does not answer"])
        assert time.monotonic() - start < LATE
        assert ready(server)[0] == 503 and len(posts) == 1, "asked once is known"
        assert server.get("/health").status == 200
    finally:
        hold.set()
    wait_until(lambda: ready(server)[0] == 200)
    assert server.chat("counted").text == "one two "


def test_a_step_that_hangs_is_noticed(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.chat("counted", "word " * 100)  # its pace is known now
    (session,) = [s for s in server.app.state.runner.cache.sessions() if s.id == "counted"]
    program, hold = session.scheduler.program, threading.Event()
    real = program.run
    monkeypatch.setattr(program, "run", lambda batch: (hold.wait(30), real(batch))[1])
    sock = server.send("/v1/chat/completions", chat_body("counted"))
    try:
        wait_until(lambda: session.scheduler.running == 1)
        time.sleep(0.1)
        start = time.monotonic()
        assert ready(server)[0] == 503 and time.monotonic() - start < LATE
    finally:
        hold.set()
        sock.close()
    wait_until(lambda: ready(server)[0] == 200)


def test_long_steps_are_no_fault(server: RunningServer) -> None:
    """A driver that computes is given the time that its step may take."""
    with server.send(
        "/v1/chat/completions", chat_body("endless", "word " * 20_000, stream=True, max_tokens=50_000)
    ):
        wait_until(lambda: server.jobs("endless") == 1)
        for _ in range(10):
            assert ready(server)[0] == 200
            time.sleep(0.02)
    wait_until(lambda: server.jobs("endless") == 0)


def test_not_ready_while_models_load_and_while_draining(tmp_path: Path) -> None:
    with running(tmp_path, {"chain": chain(tmp_path)}) as server:
        with server.app.state.readiness.loading(["chain"]):
            assert ready(server) == (503, ["models are being loaded"])
        assert ready(server)[0] == 200
        with pytest.raises(ValueError), server.app.state.readiness.loading(["chain"]):
            raise ValueError
        assert ready(server)[0] == 503, "what failed to load is not there"
        with server.app.state.readiness.loading([]):
            pass
        server.app.state.runner.draining = True
        assert ready(server) == (503, ["the server is shutting down"]) and server.get("/health").status == 200


def test_a_load_that_fails_ends_the_server_and_is_its_failure() -> None:
    from rase.server.listen import Server, bind

    def prepare(cancelled: Any) -> None:
        raise InvalidSetting("x")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    app.state = type("S", (), {"runner": type("R", (), {"begin_drain": staticmethod(lambda s: None)})})  # type: ignore[attr-defined]
    with bind("127.0.0.1", 0) as sock:
        server = Server(app, prepare=prepare)
        asyncio.run(server.serve([sock]))
    assert isinstance(server.failure, InvalidSetting)


# Limits


def test_the_longest_context_can_be_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(tmp_path, context_length=300)
    for limit, length in (("64", 64), ("1000", 300)):
        monkeypatch.setenv("RASE_MAX_MODEL_LEN", limit)
        with rase.load(path) as model:
            assert model.session.context_length == length


def test_the_kv_cache_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_NUM_BLOCKS", "5")
    with rase.load(chain(tmp_path)) as model:
        assert model.session.scheduler.pool.capacity == (5,)


def test_no_more_models_than_may_be_loaded(tmp_path: Path) -> None:
    from rase.session_cache import SessionCache

    cache = SessionCache(max_models=1)
    with running(tmp_path, {name: chain(tmp_path) for name in ("a", "b")}, cache=cache) as server:
        for name in ("a", "b", "a"):
            assert server.chat(name).text == "one two "
            assert [session.id for session in cache.sessions()] == [name]
        (session,) = cache.sessions()
        cache.keep(session, pinned=True)
        del session
        answer = server.chat("b")
        assert answer.status == 503 and "retry-after" in answer.headers
