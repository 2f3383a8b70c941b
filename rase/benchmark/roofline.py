"""Draws a report as a roofline (Williams et al., CACM 52/4, 2009): speed over work done per byte read.

Below the slope the memory is too slow for more, below a ceiling the arithmetic unit is. A generated token
reads every weight once for itself; a prompt shares one reading among its tokens, so it lies further right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rase.benchmark.speeds import Report
from rase.errors import BackendUnavailable, InvalidRequest

if TYPE_CHECKING:
    from rase.backends.limits import Limits

__all__ = ["check", "draw"]


def check(path: str | os.PathLike[str]) -> None:
    """Raise unless a picture can be drawn to ``path``, before anything is measured.

    ``BackendUnavailable`` without matplotlib, ``InvalidRequest`` for a kind of file that it does not write or
    a folder that is not there.
    """
    known = _figure(1, 1).canvas.get_supported_filetypes()
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in known:
        kinds = "one of " + ", ".join(sorted(known))
        raise InvalidRequest(f"a picture of kind {kind!r}", expected=kinds, found=os.fspath(path))
    if not Path(path).resolve().parent.is_dir():
        raise InvalidRequest(f"the folder of {os.fspath(path)!r}", expected="a folder", found="none")


def draw(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the picture of ``report`` to ``path``.

    Raises what ``check`` does, and ``InvalidRequest`` where the backend knows no limits.
    """
    if report.limits is None:
        raise InvalidRequest("a roofline", expected="a backend that can measure the machine's limits")
    figure = _figure(9, 5.5)
    axes = figure.add_subplot(xscale="log", yscale="log")
    points = [*_points(report)]
    _draw_limits(axes, report.limits, [intensity for intensity, *_ in points])
    for intensity, speed, label, sharing in points:
        axes.plot([intensity], [speed], "o")
        side = {"ha": "right", "xytext": (-8, -3)} if sharing else {"ha": "left", "xytext": (8, -3)}
        axes.annotate(label, (intensity, speed), textcoords="offset points", fontsize=9, **side)
    axes.set_xlabel("operations per byte of the file that is read")
    axes.set_ylabel("GFLOP/s of the matrices")
    facts = report.limits.details
    title = f"{report.model}, {report.numerics_class}, {facts['isa']}, {facts['decode_threads']} threads"
    axes.set_title(title, fontsize=10)
    axes.grid(True, which="both", alpha=0.2)
    figure.savefig(path)


def _points(report: Report) -> Iterator[tuple[float, float, str, bool]]:
    """(operations per byte, GFLOP/s, label, whether tokens share a reading) of each speed."""
    cost = report.cost
    for speed in report.speeds:
        rates, prefill = report.rates(speed), speed.what == "prefill"
        if prefill:
            sharing = min(speed.tokens, report.chunk_tokens)
            intensity, name = cost.prompt_flop * sharing / cost.token_bytes, f"prefill {speed.tokens}"
        else:
            intensity, name = cost.token_flop / cost.token_bytes, f"decode at {speed.context}"
        label = f"{name}: {rates['tokens_per_s']:.1f} tok/s"
        yield intensity, rates["gflop_per_s"], label, prefill


def _draw_limits(axes: Any, limits: Limits, intensities: list[float]) -> None:
    """The slope of the memory and the ceiling of each unit, wide enough for the points."""
    read, top = limits.read_gb_per_s, max(limits.peaks.values())
    left, right = min(intensities) / 3, 3 * max(*intensities, top / read)
    axes.plot([left, top / read], [left * read, top], color="black")
    axes.annotate(
        f"memory {read:.1f} GB/s", (left, left * read), xytext=(8, 0), textcoords="offset points", fontsize=9
    )
    for unit, peak in limits.peaks.items():
        axes.plot([peak / read, right], [peak, peak], color="black", linestyle="--")
        axes.annotate(
            f"{unit} {peak:.0f} GFLOP/s", (right, peak), ha="right", xytext=(-4, 4),
            textcoords="offset points", fontsize=9,
        )  # fmt: skip


def _figure(width: float, height: float) -> Any:
    """An empty figure, made without pyplot, which would look for a display."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BackendUnavailable(
            "drawing needs matplotlib", found="none", hint='Install it with: pip install "rase-llm[plot]"'
        ) from None
    return Figure(figsize=(width, height), layout="constrained")
