"""Fixtures of the bug cases that are asked over HTTP: a server per test file, and the prompts it made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rase.server import runner as lanes
from tests.support.http_server import RunningServer, running

Serve = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """``serve(make)`` starts a server on the models that ``make(folder)`` writes (once a file)."""
    import contextlib

    with contextlib.ExitStack() as stack:

        def start(make: Callable[[Path], dict[str, Path]]) -> RunningServer:
            folder = tmp_path_factory.mktemp("http")
            return stack.enter_context(running(folder, make(folder)))

        yield start


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompt of every request that was accepted, as text with its control tokens."""
    seen: list[str] = []
    real = lanes.prepare

    def prepare(session: Any, request: Any) -> Any:
        prepared = real(session, request)
        seen.append(session.tokenizer.decode(prepared.ids, skip_special_tokens=False))
        return prepared

    monkeypatch.setattr(lanes, "prepare", prepare)
    return seen
