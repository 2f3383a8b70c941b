"""The load bench: what it sends, what it notes, and how figures come of it."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import serving
from bench.load_client import Seen, drive
from bench.serving_picture import draw
from bench.serving_stats import percentiles, summary
from bench.traffic import KINDS, Ask, arrivals
from tests.support import toys
from tests.support.http_server import running


def test_traffic_is_repeatable_and_of_the_asked_rate() -> None:
    for kind in KINDS:
        first, again = list(arrivals(kind, 4.0, 400)), list(arrivals(kind, 4.0, 400))
        assert first == again and first[0].at == 0.0
        assert 80 < first[-1].at < 125, "400 at 4 a second"
        prompts = [ask.messages[-1]["content"] for ask in first]
        assert len(set(prompts)) == len(prompts), "no cache helps"
        other = list(arrivals(kind, 8.0, 400))
        assert [ask.messages for ask in other] == [ask.messages for ask in first], "the same at every rate"
    assert {ask.at for ask in arrivals("fixed", math.inf, 5)} == {0.0}
    assert len({ask.tokens for ask in arrivals("mixed", 1.0, 50)}) > 10
    beginnings = {ask.messages[0]["content"] for ask in arrivals("shared", 1.0, 50)}
    assert len(beginnings) == 1 and len(beginnings.pop().split()) == 300


def test_percentiles_are_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentiles(values) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert percentiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0}
    assert percentiles([]) == {"p50": math.inf, "p95": math.inf, "p99": math.inf}


def test_figures_of_known_answers() -> None:
    def seen(due: float, *times: float, **facts: Any) -> Seen:
        return Seen(due, len(times), facts.get("status", 200), list(times), facts.get("done", True))

    found = [seen(0.0, 0.1, 0.2, 0.4), seen(1.0, 0.3, 0.4, 0.5)]
    row = summary(found)
    assert row["ttft"]["p50"] == 0.1 and row["ttft"]["p99"] == 0.3
    assert row["itl"]["p99"] == pytest.approx(0.2) and row["itl"]["p50"] == pytest.approx(0.1)
    assert row["tpot"]["p99"] == pytest.approx(0.15) and row["e2e"]["p99"] == 0.5
    assert row["tokens_per_second"] == pytest.approx(6 / 1.5)
    assert row["goodput"] == 0.0, "more than 50 ms between tokens"
    assert summary([seen(0.0, 0.1, 0.12)])["goodput"] == 1.0
    for bad in (seen(0.0, status=503), seen(0.0, 0.1, done=False), seen(0.0, 0.1, status=500)):
        row = summary([*found, bad])
        assert row["answered"] == 2 and math.isinf(row["ttft"]["p99"]) and math.isinf(row["itl"]["p99"])
    assert summary([*found, seen(0.0, status=503)])["refused"] == 1


def test_a_real_server_is_driven(tmp_path: Path) -> None:
    words = ["one ", "two "]
    chain = toys.chain(
        tmp_path, words, then=words[0], tokenizer=toys.toy_bpe(pieces=words), context_length=500
    )
    asks = [Ask(0.02 * k, [{"role": "user", "content": "Hi"}], 5 + k) for k in range(6)]
    with running(tmp_path, {"chain": chain}) as server:
        url = server.url + "/v1"
        found = asyncio.run(drive(url, "chain", asks, patience=60))
        assert all(seen.ok for seen in found) and [len(seen.times) for seen in found] == [5, 6, 7, 8, 9, 10]
        assert all(seen.times == sorted(seen.times) for seen in found)
        refused = asyncio.run(drive(url, "absent", asks[:1], patience=60))
        assert refused[0].status == 404 and not refused[0].ok
    gone = asyncio.run(drive(url, "chain", asks[:1], patience=5))
    assert gone[0].error and not gone[0].ok


def test_late_answers_count_from_when_they_were_due() -> None:
    """A server that answers one after the other: each request waits for those before it."""

    async def run() -> list[Seen]:
        turn = asyncio.Lock()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: ping\n\n")
            async with turn:
                await asyncio.sleep(0.05)
                event = {"choices": [{"delta": {"content": "a"}}]}
                writer.write(f"data: {json.dumps(event)}\n\n".encode())
                writer.write(b'data: {"choices": []}\n\ndata: [DONE]\n\n')
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asks = [Ask(0.0, [], 1) for _ in range(4)]
        found = await drive(f"http://127.0.0.1:{port}/v1", "m", asks, patience=10)
        hung = await drive(f"http://127.0.0.1:{port}/v1", "m", asks, patience=0.0)
        server.close()
        return [*found, *hung]

    found = asyncio.run(run())
    waited = sorted(seen.times[0] for seen in found[:4])
    assert all(seen.ok for seen in found[:4]) and waited[3] > waited[0] + 0.12
    assert not any(seen.done for seen in found[4:]), "patience ends"


def test_results_are_kept_and_drawn(tmp_path: Path) -> None:
    def row(engine: str, rate: float, ttft: float) -> dict[str, Any]:
        figures = {"p50": ttft, "p95": ttft, "p99": ttft}
        return {
            "engine": engine, "kind": "fixed", "rate": rate, "requests": 4, "answered": 4, "refused": 0,
            "ttft": figures, "tpot": figures, "itl": figures, "e2e": figures, "tokens_per_second": 5.0,
            "goodput": 1.0,
        }  # fmt: skip

    path = tmp_path / "serving.json"
    serving.keep(path, [row("a", 1.0, 0.1), row("a", math.inf, math.inf)])
    kept = serving.keep(path, [row("a", 1.0, 0.2), row("b", 1.0, 0.3)])
    assert [(one["engine"], one["rate"], one["ttft"]["p50"]) for one in kept] == [
        ("a", 1.0, 0.2), ("a", math.inf, math.inf), ("b", 1.0, 0.3),
    ]  # fmt: skip
    assert "Infinity" not in path.read_text()
    draw(kept, tmp_path / "serving.png")
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")
    assert "inf/s" in serving.line(kept[1])
