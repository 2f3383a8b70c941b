"""Proof 4 of list 05: the serving sweep beside llama_cpp.server, at equal arrival rates.

Figures and picture go to ``bench/serving.json`` and ``bench/serving.png``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bench import serving
from bench.serving_engines import endpoint
from bench.serving_picture import draw

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]

PEERS = ("llama-avx512", "llama-amx")
SWEEP = {"fixed": (0.5, 1.0, 2.0, 4.0, 8.0, math.inf), "mixed": (1.0, 4.0), "shared": (1.0, 4.0)}


@pytest.fixture(scope="module")
def rows(smollm2: Path) -> dict[tuple[str, str, float], dict[str, Any]]:
    """By engine, kind of traffic and rate. A peer whose processor this is not is left out."""
    amx = "amx_bf16" in Path("/proc/cpuinfo").read_text()
    engines = ["rase", *(peer for peer in PEERS if amx or peer != "llama-amx")]
    found = []
    for engine in engines:
        with endpoint(engine, smollm2, None, "model") as end:
            for kind, rates in SWEEP.items():
                found += [serving.measure(end, kind, rate) for rate in rates]
    for row in found:
        print(serving.line(row))
    draw(serving.keep(serving.OUT, found), serving.OUT.with_suffix(".png"))
    return {(row["engine"], row["kind"], row["rate"]): row for row in found}


def best(rows: dict[tuple[str, str, float], dict[str, Any]], kind: str, rate: float, figure: str) -> float:
    """The better p99 of the peer's builds."""
    return min(
        row[figure]["p99"]
        for (engine, *point), row in rows.items()
        if engine != "rase" and point == [kind, rate]
    )


@pytest.mark.parametrize("kind", SWEEP)
def test_tails_at_every_rate(rows: Any, kind: str, figure) -> None:
    wrong = []
    for rate in SWEEP[kind]:
        if math.isinf(rate):
            continue
        words = []
        for name in ("ttft", "itl"):
            mine, peers = rows["rase", kind, rate][name]["p99"], best(rows, kind, rate, name)
            words.append(f"{name} p99 {1e3 * mine:.0f} against {1e3 * peers:.0f} ms")
            if not mine < peers:
                wrong.append((rate, name, mine, peers))
        figure(f"{kind}, {rate:g}/s: {', '.join(words)}")
    assert not wrong


def test_throughput_at_saturation(rows: Any, figure) -> None:
    mine = rows["rase", "fixed", math.inf]["tokens_per_second"]
    peers = max(row["tokens_per_second"] for (engine, *_), row in rows.items() if engine != "rase")
    figure(f"at saturation {mine:.0f} tok/s against {peers:.0f}: {mine / peers:.1f} times (goal 2)")
    assert mine >= 2 * peers
