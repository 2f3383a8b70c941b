"""Progress on stderr: a bar on a terminal, a line every few seconds elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from rase.cli.common import settings, size_text

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

__all__ = ["Progress"]

PATIENCE = 0.3  # seconds before a bar appears: a quick step shows none
LINE_EVERY = 5.0  # seconds between two lines where there is no terminal

_NAMES = {"download": "fetching", "hash": "hashing", "load": "loading", "quantize": "quantizing"}


class Progress:
    """Call it with (stage, bytes done, bytes in all or 0); use it as a context manager."""

    def __init__(self) -> None:
        self._quiet = settings().quiet
        self._terminal = sys.stderr.isatty()
        self._bars: RichProgress | None = None
        self._tasks: dict[str, int] = {}
        self._started = self._last = time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        if not self._terminal:
            if now - self._last >= LINE_EVERY:
                self._last = now
                click.echo(f"{_NAMES.get(stage, stage)}: {_share(done, total)}", err=True)
        elif now - self._started >= PATIENCE:
            self._draw(stage, done, total)

    def stage(self, name: str) -> Step:
        """A callback (done, total) for one stage."""
        return Step(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def _draw(self, stage: str, done: int, total: int) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            self._bars = Progress(
                TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                TimeRemainingColumn(), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bars.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(_NAMES.get(stage, stage), total=total or None)
        self._bars.update(self._tasks[stage], completed=done, total=total or None)  # type: ignore[arg-type]


class Step:
    """One stage of a ``Progress``."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def __call__(self, done: int, total: int) -> None:
        self._progress(self._name, done, total)


def _share(done: int, total: int) -> str:
    return f"{100 * done // total} % of {size_text(total)}" if total else size_text(done)
