"""The debug log says how much of each prompt was found, and why it was not more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.engine.test_batching import Bench, prompt
from tests.engine.test_disk_tier import bench_over


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "rase.engine")
    return caplog


def ask(bench: Bench, tokens: list[int], said: pytest.LogCaptureFixture) -> str:
    said.clear()
    bench.add(tokens)
    bench.finish()
    (line,) = [record.getMessage() for record in said.records if record.getMessage().startswith("prefix:")]
    return line.removeprefix("prefix: ")


def test_every_reason(said: pytest.LogCaptureFixture) -> None:
    bench = Bench(alike=False)
    disk = "(0 pages from the disk)"
    other = "holds other tokens, or the same in another role, or was evicted"
    assert ask(bench, prompt(32), said) == f"0 of 32 tokens cached {disk}: shorter than a page and one token"
    assert ask(bench, prompt(100), said) == f"32 of 100 tokens cached {disk}: page 1 {other}"
    assert ask(bench, prompt(100), said) == f"96 of 100 tokens cached {disk}: all that may be reused"
    assert ask(bench, prompt(70) + prompt(70, 1), said).startswith("64 of 140 tokens cached")
    bench.batching.tree.clear()
    assert ask(bench, prompt(100), said).endswith("the cache is empty")


def test_a_window_that_has_given_pages_back(said: pytest.LogCaptureFixture) -> None:
    bench = Bench(windows=(None, 40))
    ask(bench, prompt(200), said)
    assert bench.batching.tree._shed(1)
    assert "but a window has given some of them back" in ask(bench, prompt(200), said)


def test_pages_from_the_disk(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    first = bench_over(tmp_path)
    ask(first, prompt(100), said)
    assert first.batching.tree.disk.flush(10)
    line = ask(bench_over(tmp_path), prompt(100), said)
    assert line == "96 of 100 tokens cached (3 pages from the disk): all that may be reused"


def test_no_prompt_is_in_the_log(said: pytest.LogCaptureFixture) -> None:
    line = ask(Bench(), [7] * 100, said)
    assert "7, 7" not in line
