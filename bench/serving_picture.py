"""Draw a sweep: one panel a figure, one line an engine, over the arrival rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw"]

PANELS = (
    ("time to the first token, p99 (ms)", lambda row: 1e3 * row["ttft"]["p99"], True),
    ("between tokens, p99 (ms)", lambda row: 1e3 * row["itl"]["p99"], True),
    ("end to end, p50 (ms)", lambda row: 1e3 * row["e2e"]["p50"], True),
    ("tokens a second", lambda row: row["tokens_per_second"], False),
)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a PNG: a row of panels for each kind of traffic, without bursts; what is infinite is on top."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = sorted({row["kind"] for row in rows})
    figure, axes = plt.subplots(
        len(kinds),
        len(PANELS),
        figsize=(4 * len(PANELS), 3 * len(kinds)),
        squeeze=False,
        layout="constrained",
    )
    for kind, panels in zip(kinds, axes, strict=True):
        for (title, figure_of, logarithmic), panel in zip(PANELS, panels, strict=True):
            here = [row for row in rows if row["kind"] == kind and not math.isinf(row["rate"])]
            for engine in sorted({row["engine"] for row in rows}):
                points = sorted((row["rate"], figure_of(row)) for row in here if row["engine"] == engine)
                seen = [(rate, value) for rate, value in points if not math.isinf(value)]
                (drawn,) = panel.plot(*(zip(*seen, strict=True) if seen else ([], [])), "o-", label=engine)
                never = [rate for rate, value in points if math.isinf(value)]
                top = panel.get_xaxis_transform()
                panel.plot(never, [1.0] * len(never), "^", color=drawn.get_color(), transform=top)
            panel.set(title=f"{kind}: {title}", xlabel="requests a second")
            panel.set_xscale("log")
            rates = sorted({row["rate"] for row in here})
            panel.set_xticks(rates, [f"{rate:g}" for rate in rates])
            panel.set_xticks([], minor=True)
            if logarithmic:
                panel.set_yscale("log")
            panel.grid(alpha=0.3)
            panel.legend(fontsize="small")
    figure.suptitle("\u25b2: some requests never got an answer", fontsize="small")
    figure.savefig(path, dpi=80)
    plt.close(figure)
