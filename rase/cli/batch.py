"""``rase batch``: a file of requests, answered into another one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rase.cli.common import common_options, device_option, hint, settings
from rase.cli.options import setting_options

if TYPE_CHECKING:
    from rase.server.batch import Progress

__all__ = ["batch"]

LINE_EVERY = 5.0  # seconds between two lines of progress


@click.command()
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT.jsonl", type=click.Path(path_type=Path))
@setting_options(
    "RASE_MAX_BATCH_SEQS", "RASE_MAX_BATCH_TOKENS", "RASE_MAX_MODEL_LEN", "RASE_KV_CACHE",
    "RASE_PREFIX_CACHING", "RASE_PREFIX_STORE", "RASE_SPECULATION", "RASE_IGNORE_EOS",
)  # fmt: skip
@device_option
@common_options
def batch(source: Path, target: Path, device: str) -> int:
    """Answer the requests of IN.jsonl into OUT.jsonl, both in the format of OpenAI's batches.

    \b
    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}]}}

    Many requests run together. Answers are appended as they come, in any order: called again after whatever
    ended it, the command goes on with what is missing. Exit code 1: some were answered with an error.
    """
    from rase.server.batch import run_batch
    from rase.session_cache import process_cache

    report = _Report()
    try:
        done = run_batch(
            settings().open_store(), process_cache(), source, target, device=device, progress=report
        )
    except KeyboardInterrupt:
        hint("Call the command again to go on with what is missing.")
        raise
    report.last(done)
    return 1 if done.failed else 0


class _Report:
    """Lines on stderr."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._before: int | None = None  # answers that were there at the start

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._before is None:
            self._before = progress.done
            if progress.done:
                hint(f"{progress.done} of {progress.total} answers are there already.")
        elif now - self._last >= LINE_EVERY:
            self._last = now
            hint(self._line(progress, now))

    def last(self, progress: Progress) -> None:
        hint(self._line(progress, time.monotonic()))

    def _line(self, progress: Progress, now: float) -> str:
        seconds = max(now - self._started, 1e-9)
        rate = (progress.done - (self._before or 0)) / seconds
        left = (progress.total - progress.done) / rate if rate else 0.0
        words = [f"{progress.done} of {progress.total} answered", f"{progress.failed} with an error"]
        words.append(f"{progress.tokens / seconds:.0f} tokens/s")
        if left:
            words.append(f"{left:.0f} s left")
        return ", ".join(words)
