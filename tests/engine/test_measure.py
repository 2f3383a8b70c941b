"""The observer that keeps the metrics: every count after a session has run, cancelled and failed requests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rase import metrics
from rase.completion import TextRequest, prepare, start
from rase.engine.config import GenerationConfig
from rase.errors import DeadlineExceeded
from rase.session import ModelSession
from tests.support import toys


def test_what_a_session_does_is_counted(tmp_path: Path) -> None:
    session = ModelSession.load_file(toys.chain(tmp_path, ["a", "b", "c"], then="a", name="counted"))
    here = metrics.of(session.id)
    here.snapshot(reset=True)

    def prepared(max_tokens: int, n: int = 1):
        config = GenerationConfig(temperature=0.0, max_tokens=max_tokens)
        return prepare(session, TextRequest(prompt="Hi " * 40, config=config, n=n))

    first = start(session, prepared(30)).result()
    start(session, prepared(4, n=2)).result()
    with pytest.raises(DeadlineExceeded):
        start(session, prepared(4), deadline=time.monotonic() - 1).result()
    endless = start(session, prepared(4000), lambda piece: time.sleep(0.001))
    endless.cancel()
    endless.result()

    found = here.snapshot()
    counts = found.counters
    assert (counts["requests_queued"], counts["requests_finished"]) == (4, 2)
    assert (counts["requests_cancelled"], counts["requests_failed"]) == (1, 1)
    assert counts["tokens_generated"] >= 30 + 8
    assert counts["tokens_cached"] >= (first.prompt_tokens - 1) // 32 * 32
    assert counts["tokens_prompt"] - counts["tokens_cached"] == counts["tokens_prefilled"]
    assert 0 < counts["drafts_accepted"] <= counts["drafts_proposed"], "the chain repeats itself"
    assert found.gauges == {"queue_length": 0, "requests_running": 0}
    times = found.histograms
    assert times["ttft_seconds"].count >= 3 and times["itl_seconds"].count >= 29 + 6
    assert times["step_seconds"].count == times["batch_sequences"].count > 0
