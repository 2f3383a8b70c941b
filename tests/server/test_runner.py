"""Lanes: order, bounds, cancellation, models and requests side by side, faults, and a live event loop."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rase.server import runner as lanes
from tests.support import toys
from tests.support.http_server import RunningServer, chat_body, running, wait_until

QUEUE = 3
STEP = 0.01  # seconds that each token takes with the brake on


@pytest.fixture(scope="module", autouse=True)
def one_at_a_time() -> Iterator[None]:
    """Models that are loaded in these tests run one request at a time, so that others wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RASE_MAX_BATCH_SEQS", "1")
        yield


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Models ``endless`` and ``other`` never stop by themselves."""
    folder = tmp_path_factory.mktemp("runner")
    words = toys.toy_bpe(words=["one ", "two "])
    chains = {
        name: toys.chain(
            folder, ["one ", "two "], then="one ", tokenizer=words, context_length=200_000, name=name
        )
        for name in ("endless", "other")
    }
    with running(folder, chains, queue_limit=QUEUE) as server:
        for name in chains:
            assert server.chat(name, max_tokens=2).text == "one two "
        yield server


class Brake:
    """Slows every step down, counts them, and notes in which order requests reached the scheduler."""

    def __init__(self) -> None:
        self.steps, self.order, self.hold = 0, [], threading.Event()
        self.fault: Exception | None = None


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Brake:
    state, real = Brake(), lanes.start

    def start(
        session: Any, prepared: Any, on_piece: Any, cancelled: Any, on_done: Any, **options: Any
    ) -> Any:  # fmt: skip
        state.order.append(prepared.config.seed)
        if state.fault is not None:
            raise state.fault

        def asked() -> bool:
            state.steps += 1
            time.sleep(STEP)
            return False

        return real(session, prepared, on_piece, asked, on_done, **options)

    monkeypatch.setattr(lanes, "start", start)
    return state


def endless(seed: int = 0, model: str = "endless", **fields: Any) -> dict[str, Any]:
    return chat_body(model, seed=seed, max_tokens=100_000, **fields)


def start(server: RunningServer, body: dict[str, Any]) -> Any:
    return server.send("/v1/chat/completions", body)


def idle(server: RunningServer) -> bool:
    return server.jobs("endless") == 0 and server.jobs("other") == 0


def test_first_come_first_served(slow: RunningServer, brake: Brake) -> None:
    answers: list[int] = []
    blocker = start(slow, endless(100, stream=True))
    wait_until(lambda: brake.order == [100])

    def ask(seed: int) -> None:
        slow.chat("endless", seed=seed, max_tokens=1)
        answers.append(seed)

    threads = []
    for seed in (1, 2, 3):
        threads.append(threading.Thread(target=ask, args=(seed,)))
        threads[-1].start()
        wait_until(lambda seed=seed: slow.jobs("endless") == seed + 1)
    blocker.close()
    for thread in threads:
        thread.join(10)
    assert brake.order == [100, 1, 2, 3] and answers == [1, 2, 3]


def test_a_full_queue_is_503_at_once(slow: RunningServer, brake: Brake) -> None:
    socks = []
    for i in range(QUEUE + 1):
        socks.append(start(slow, endless(i)))
        wait_until(lambda i=i: slow.jobs("endless") == i + 1)
    began = time.perf_counter()
    answer = slow.chat("endless")
    assert time.perf_counter() - began < 0.5
    assert (answer.status, answer.error["code"], answer.error["type"]) == (503, "server_busy", "server_error")
    assert int(answer.headers["retry-after"]) >= 1 and "x-should-retry" not in answer.headers
    assert slow.chat("other", max_tokens=2).status == 200  # another model has its own lane
    socks.pop().close()  # a waiting client leaves: its place is free at once
    wait_until(lambda: slow.jobs("endless") == QUEUE)
    socks.append(start(slow, endless(9)))
    wait_until(lambda: slow.jobs("endless") == QUEUE + 1)
    for sock in socks:
        sock.close()
    assert wait_until(lambda: idle(slow)) < 2


def test_models_run_side_by_side(slow: RunningServer, brake: Brake) -> None:
    with contextlib.closing(start(slow, endless(stream=True))):
        wait_until(lambda: brake.order)
        assert slow.chat("other", max_tokens=3).status == 200
        assert slow.jobs("endless") == 1
    wait_until(lambda: idle(slow))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_work(slow: RunningServer, brake: Brake, stream: bool) -> None:
    sock = start(slow, endless(stream=stream))
    wait_until(lambda: brake.steps > 3)
    sock.close()
    assert wait_until(lambda: idle(slow)) < 1
    time.sleep(3 * STEP)
    steps = brake.steps
    time.sleep(5 * STEP)
    assert brake.steps == steps


def test_bad_requests_are_refused_while_another_generates(slow: RunningServer, brake: Brake) -> None:
    with contextlib.closing(start(slow, endless(stream=True))):
        wait_until(lambda: brake.order)
        answer = slow.chat("endless", logit_bias={"99999": 1})
        assert (answer.status, answer.error["param"]) == (400, "logit_bias")
        assert brake.order == [0]
    wait_until(lambda: idle(slow))


def test_a_waiting_stream_has_its_headers_and_pings(tmp_path: Path, brake: Brake) -> None:
    words = toys.toy_bpe(words=["one ", "two "])
    chain = toys.chain(tmp_path, ["one ", "two "], then="one ", tokenizer=words, context_length=100_000)
    with (
        running(tmp_path, {"endless": chain}, ping_s=0.1) as server,
        contextlib.closing(start(server, endless())),
    ):
        wait_until(lambda: brake.order)
        with contextlib.closing(start(server, endless(1, stream=True))) as waiting:
            seen = b""
            while seen.count(b": ping\n\n") < 3:
                seen += waiting.recv(4096)
            assert b"200 OK" in seen and b'"role":"assistant"' in seen and b'"content":"one' not in seen


def test_a_fault_inside_is_one_500_and_the_lane_lives(slow: RunningServer, brake: Brake) -> None:
    brake.fault = RuntimeError("secret prompt at /home/somebody")
    answer = slow.chat("endless", max_tokens=2)
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert answer.headers["x-should-retry"] == "false" and b"secret" not in answer.body
    streamed = slow.chat("endless", max_tokens=2, stream=True)
    events = [json.loads(block[6:]) for block in streamed.body.split(b"\n\n") if block]
    assert (
        streamed.status == 200
        and events[-1]["error"]["code"] == "internal_error"
        and b"DONE" not in streamed.body
    )
    assert not [line for line in slow.log if "secret" in line or "Traceback" in line]
    assert [line for line in slow.log if "internal error: RuntimeError in start:" in line]
    for fault in (SystemExit("out"), KeyboardInterrupt(), MemoryError()):
        brake.fault = fault  # type: ignore[assignment]
        assert slow.chat("endless", max_tokens=2).status == 500
    brake.fault = None
    assert slow.chat("endless", max_tokens=2).text == "one two "


def test_the_event_loop_stays_live(slow: RunningServer, brake: Brake) -> None:
    socks = [
        start(slow, endless(i, model=model, stream=True)) for i, model in enumerate(("endless", "other"))
    ]
    wait_until(lambda: len(brake.order) == 2)
    worst = 0.0
    for _ in range(40):
        began = time.perf_counter()
        assert slow.get("/health").status == 200
        worst = max(worst, time.perf_counter() - began)
    for sock in socks:
        sock.close()
    wait_until(lambda: idle(slow))
    assert worst < 2, "generation on the event loop would block it for minutes"


def test_a_storm_of_leaving_clients(slow: RunningServer, brake: Brake) -> None:
    del slow.log[:]
    for i in range(40):
        sock = start(slow, endless(i, stream=bool(i % 2)))
        if i % 4 == 1:
            sock.recv(1 + i)
        sock.close()
    assert wait_until(lambda: idle(slow)) < 2
    for _ in range(3):
        assert slow.chat("endless", max_tokens=2).text == "one two "
    assert not [line for line in slow.log if "Traceback" in line or "internal error" in line]


def test_an_idle_lane_keeps_no_session(tmp_path: Path) -> None:
    import gc
    import weakref

    from rase.session_cache import SessionCache

    cache = SessionCache()
    with running(tmp_path, {"tiny": toys.tiny_llama(tmp_path)}, cache=cache) as server:
        assert server.chat("tiny", max_tokens=2).status == 200
        (session,) = [weakref.ref(session) for session in cache.sessions()]
        cache.clear()
        wait_until(lambda: gc.collect() is not None and session() is None)
        assert server.chat("tiny", max_tokens=2).status == 200


def test_a_fault_of_the_model_is_one_500_and_the_next_answer_is_right(
    slow: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rase.backends.cpu import CpuProgram

    with monkeypatch.context() as patch:
        patch.setattr(CpuProgram, "run", lambda self, batch: 1 / 0)
        answer = slow.chat("endless", max_tokens=2)
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert slow.chat("endless", max_tokens=2).text == "one two "


def test_requests_of_one_model_run_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_MAX_BATCH_SEQS", "8")
    words = toys.toy_bpe(words=["one ", "two "])
    chain = toys.chain(tmp_path, ["one ", "two "], then="one ", tokenizer=words, context_length=100_000)
    with running(tmp_path, {"endless": chain}) as server:
        with contextlib.closing(start(server, endless(stream=True))) as sock:
            sock.recv(1)
            for _ in range(3):
                assert server.chat("endless", max_tokens=2).text == "one two "
            assert server.jobs("endless") == 1
        wait_until(lambda: server.jobs("endless") == 0)
