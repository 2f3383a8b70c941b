"""A report as text for people: the model, the machine, and a table of speeds beside the limits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rase.benchmark.speeds import Report, Speed

__all__ = ["lines"]

_COLUMNS = ("", "tok/s", "from", "to", "GB/s", "of memory", "GFLOP/s", "of peak")


def lines(report: Report) -> Iterator[str]:
    """The lines of the report."""
    cost, limits = report.cost, report.limits
    yield f"model    {report.model}, {report.architecture}, {cost.file_bytes / 1e9:.2f} GB of weights"
    yield f"         a token reads {cost.token_bytes / 1e9:.2f} GB, takes {cost.token_flop / 1e9:.2f} GFLOP"
    yield f"class    {report.numerics_class}, {report.fingerprint}"
    if limits is not None:
        facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in limits.details.items())
        yield f"machine  {facts}"
        peaks = ", ".join(f"{unit} {peak:.0f} GFLOP/s" for unit, peak in limits.peaks.items())
        yield f"limits   memory reads {limits.read_gb_per_s:.1f} GB/s; {peaks}"
    if report.load_s is not None:
        rate = cost.file_bytes / report.load_s / 1e9
        yield f"load     {report.load_s:.2f} s, {rate:.2f} GB/s, hashed and packed"
    yield ""
    rows = [_COLUMNS, *(_row(report, speed) for speed in report.speeds)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def _row(report: Report, speed: Speed) -> tuple[str, ...]:
    rates = report.rates(speed)
    name = f"prefill {speed.tokens}" if speed.what == "prefill" else f"decode at {speed.context}"
    slow, fast = (speed.tokens / f(speed.seconds) for f in (max, min))

    def cell(key: str, form: str) -> str:
        return form.format(rates[key]) if key in rates else ""

    return (
        name, f"{speed.tokens / statistics.median(speed.seconds):.1f}", f"{slow:.1f}", f"{fast:.1f}",
        cell("gb_per_s", "{:.1f}"), cell("bandwidth_share", "{:.0%}"), cell("gflop_per_s", "{:.0f}"),
        cell("peak_share", "{:.0%}"),
    )  # fmt: skip
