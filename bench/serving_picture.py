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
    """Write a PNG: a row of panels for each kind of traffic. Bursts and infinite figures are left out."""
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
            for engine in sorted({row["engine"] for row in rows}):
                points = [
                    (row["rate"], value)
                    for row in rows
                    if (row["engine"], row["kind"]) == (engine, kind) and not math.isinf(row["rate"])
                    if not math.isinf(value := figure_of(row))
                ]
                panel.plot(*zip(*sorted(points), strict=True) if points else ([], []), "o-", label=engine)
            panel.set(title=f"{kind}: {title}", xlabel="requests a second", xscale="log")
            if logarithmic:
                panel.set_yscale("log")
            panel.grid(alpha=0.3)
            panel.legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)
