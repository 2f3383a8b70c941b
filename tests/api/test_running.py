"""``start`` and ``Running``: generations on the driver thread: dropped, late, held up."""

from __future__ import annotations

import threading
import time

import pytest

from rase.completion import Completion, Piece, TextRequest, prepare, run, start
from rase.engine.config import GenerationConfig
from rase.errors import DeadlineExceeded, SessionBusy


def ask(session, *, on_piece=None, **config) -> Completion:
    request = TextRequest(prompt="Hi ", config=GenerationConfig(temperature=0.0, **config))
    return run(session, prepare(session, request), on_piece)


def test_a_callback_on_the_driver_may_not_use_the_model(endless) -> None:
    refused: list[BaseException] = []

    def on_piece(piece: Piece) -> None:
        with pytest.raises(SessionBusy) as caught:
            ask(endless, max_tokens=3)
        refused.append(caught.value)

    config = GenerationConfig(temperature=0.0, max_tokens=3)
    running = start(endless, prepare(endless, TextRequest(prompt="Hi ", config=config)), on_piece)
    assert running.result().text == "abc" and len(refused) == 3


def test_a_generation_that_is_dropped_is_cancelled(endless) -> None:
    ended: list[object] = []
    config = GenerationConfig(temperature=0.0, max_tokens=4000)
    prepared = prepare(endless, TextRequest(prompt="Hi ", config=config))
    running = start(endless, prepared, on_done=ended.append)
    request = running.request
    del running
    assert request.wait(10) and request.error is None and ended == [None]


def test_the_result_of_a_running_generation(endless) -> None:
    config = GenerationConfig(temperature=0.0, max_tokens=5)
    prepared = prepare(endless, TextRequest(prompt="Hi ", config=config, n=2))
    told: list[object] = []
    running = start(endless, prepared, on_done=told.append)
    assert running.result().choices == run(endless, prepared).choices
    assert running.done and told == [running] and running.completion is running.result()
    late = start(endless, prepared, deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        late.result()
    assert late.completion is None and isinstance(late.error, DeadlineExceeded)


def test_who_hears_the_end_may_load_another_model(endless) -> None:
    config = GenerationConfig(temperature=0.0, max_tokens=3)
    heard: list[bool] = []
    prepared = prepare(endless, TextRequest(prompt="Hi ", config=config))
    running = start(endless, prepared, on_done=lambda ended: heard.append(ended is None or ended.active))
    assert running.result().text == "abc" and heard == [False], "an answer that was told keeps no model"


def test_a_slow_reader_is_not_run_away_from(endless) -> None:
    """The model waits for a callback that is a few pieces behind, and others do not wait for it."""
    started, release = threading.Event(), threading.Event()
    made: list[int] = []
    program, real = endless.scheduler.program, endless.scheduler.program.run

    def hold(piece: Piece) -> bool:
        started.set()
        release.wait(10)
        return len(made) < 0

    def counted(batch):
        made.append(len(batch.ids))
        return real(batch)

    program.run = counted
    try:
        done: list[Completion] = []
        slow = threading.Thread(target=lambda: done.append(ask(endless, max_tokens=500, on_piece=hold)))
        slow.start()
        assert started.wait(10)
        assert ask(endless, max_tokens=4).text == "abca"
        time.sleep(0.05)
        assert len(made) < 30
        release.set()
        slow.join(10)
    finally:
        del program.run
    assert (done[0].text, done[0].choices[0].finish_reason) == ("a", "cancelled")
