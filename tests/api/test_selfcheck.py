"""The self-check of a loaded model: what it computes, and which faults it sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rase
from rase.errors import BackendError, InvalidLogits
from rase.selfcheck import ANSWER, PROMPT, self_check
from rase.server import serve as servers
from rase.store import open_store
from tests.support import toys


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    with rase.load(toys.tiny_llama(tmp_path)) as model:
        yield model.session


def spoil(session: Any, monkeypatch: pytest.MonkeyPatch, change: Any) -> list[int]:
    """Let ``change(rows, call)`` decide what each pass returns; the numbers of tokens of all passes."""
    program, calls = session.scheduler.program, []
    real = program.run

    def run(batch: Any) -> Any:
        calls.append(len(batch.ids))
        return change(real(batch), len(calls))

    monkeypatch.setattr(program, "run", run)
    return calls


def test_it_computes_a_prompt_and_decodes_twice(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spoil(session, monkeypatch, lambda rows, call: rows)
    self_check(session)
    assert calls == [PROMPT, *[1] * (ANSWER - 1)] * 2
    assert not any(session.scheduler.pool.in_use), "nothing of it is kept"


def test_a_short_context_is_no_fault(tmp_path: Path) -> None:
    with rase.load(toys.tiny_llama(tmp_path), context_length=8) as model:
        self_check(model.session)


@pytest.mark.parametrize("bad", range(2, 2 * ANSWER + 1))
def test_a_pass_that_differs_is_seen(session: Any, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    spoil(session, monkeypatch, lambda rows, call: -rows if call == bad else rows)
    with pytest.raises(BackendError, match="self-check"):
        self_check(session)


def test_no_numbers_are_seen(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(session, monkeypatch, lambda rows, call: rows * np.float32("nan"))
    with pytest.raises(InvalidLogits):
        self_check(session)


def test_a_pass_that_never_ends_is_seen(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    spoil(session, monkeypatch, lambda rows, call: (hold.wait(30), rows)[1])
    try:
        with pytest.raises(BackendError, match="no answer"):
            self_check(session, timeout=0.1)
    finally:
        hold.set()


def test_a_server_does_not_start_with_a_model_that_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(tmp_path / "store").import_local("tiny", toys.tiny_llama(tmp_path))

    def fail(session: Any) -> None:
        raise BackendError("the self-check")

    monkeypatch.setattr(servers, "self_check", fail)
    with pytest.raises(BackendError, match="self-check"):
        servers.serve(tmp_path / "store", models=["tiny"], port=0)
    assert "rase serves" not in capsys.readouterr().err
