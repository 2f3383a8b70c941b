"""Serve under load: sweep arrival rates over loopback and say what clients saw.

    python -m bench.serving FILE                          # rase, llama_cpp.server and the picture
    python -m bench.serving FILE --engines rase --kinds fixed --rates 1,2,4
    python -m bench.serving --url http://127.0.0.1:8080/v1 --model smollm2

With FILE (a GGUF) the engines are started here, one at a time, with the same two threads, and driven alike.
``--url`` drives whatever answers there. Results go to a JSON file and a picture (``--out``); those of an
earlier call stay beside the new ones, so that a sweep may be run in pieces.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import click

from bench.load_client import Seen, drive
from bench.serving_engines import ENGINES, Endpoint, endpoint
from bench.serving_picture import draw
from bench.serving_stats import summary
from bench.traffic import KINDS, arrivals

OUT = Path(__file__).with_name("serving.json")
SECONDS = 8.0  # of arrivals at each rate
PATIENCE = 20.0  # seconds behind the last arrival: whoever has no answer then gets none
LEAST, BURST = 12, 48  # requests at a low rate: fewer show no tail; and at once: the throughput at saturation


def measure(end: Endpoint, kind: str, rate: float, seconds: float = SECONDS) -> dict[str, Any]:
    """Drive one endpoint at one rate (infinite: a burst) and return the figures."""
    count = BURST if math.isinf(rate) else max(LEAST, round(rate * seconds))
    asks = list(arrivals(kind, rate, count))
    warm = list(arrivals(kind, math.inf, 2, seed=1))

    async def run() -> list[Seen]:
        await drive(end.url, end.model, warm, patience=PATIENCE, options=end.options)
        await asyncio.sleep(0.2)
        return await drive(end.url, end.model, asks, patience=PATIENCE, options=end.options)

    return {"engine": end.name, "kind": kind, "rate": rate, **summary(asyncio.run(run()))}


def line(row: dict[str, Any]) -> str:
    """One run as people read it, in milliseconds."""
    cells = [
        f"{row['engine']:<10} {row['kind']:<6} {row['rate']:>5g}/s {row['answered']:>3}/{row['requests']}"
    ]
    for name in ("ttft", "tpot", "itl", "e2e"):
        values = " ".join(f"{1e3 * row[name][share]:7.1f}" for share in ("p50", "p95", "p99"))
        cells.append(f"{name} {values}")
    cells.append(f"{row['tokens_per_second']:6.1f} tok/s  good {100 * row['goodput']:3.0f} %")
    return "  ".join(cells)


def keep(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write ``rows`` in the place of earlier ones of the same engine, kind and rate; return all of them."""
    known = [_real(row) for row in json.loads(path.read_text("utf-8"))] if path.exists() else []
    merged = {(row["engine"], row["kind"], row["rate"]): row for row in [*known, *rows]}
    ordered = [merged[key] for key in sorted(merged)]
    path.write_text(json.dumps([_plain(row) for row in ordered], indent=1) + "\n", "utf-8")
    return ordered


def _plain(value: Any) -> Any:
    """JSON has no infinity; seconds are kept to the microsecond."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return ("inf" if math.isinf(value) else round(value, 6)) if isinstance(value, float) else value


def _real(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _real(item) for name, item in value.items()}
    return math.inf if value == "inf" else value


@click.command(help=__doc__)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--url", help="An endpoint that runs already, on this machine.")
@click.option("--model", default="model", help="The model to ask it for.")
@click.option("--engines", default=",".join(ENGINES), show_default=True)
@click.option("--kinds", default="fixed", show_default=True, help=f"Of {', '.join(KINDS)}.")
@click.option(
    "--rates", default="0.5,1,2,4,8,inf", show_default=True, help="Requests a second; inf: a burst."
)
@click.option("--seconds", default=SECONDS, show_default=True, help="Of arrivals at each rate.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=OUT, help="The JSON file; a picture beside it."
)
def main(
    file: Path | None, url: str | None, model: str, engines: str, kinds: str, rates: str, seconds: float,
    out: Path,
) -> None:  # fmt: skip
    if (file is None) == (url is None):
        raise click.UsageError("Name a FILE, or the --url of a server.")
    names = ["url"] if url else engines.split(",")
    rows = []
    for name in names:
        start = time.monotonic()
        with endpoint(name, file, url, model) as end:
            print(f"{name}: there after {time.monotonic() - start:.1f} s", file=sys.stderr)
            for kind in kinds.split(","):
                for rate in map(float, rates.split(",")):
                    rows.append(measure(end, kind, rate, seconds))
                    print(line(rows[-1]), flush=True)
    draw(keep(out, rows), out.with_suffix(".png"))


if __name__ == "__main__":
    main()
