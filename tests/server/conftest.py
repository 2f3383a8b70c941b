"""One server with a few toy models, shared by the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import toys
from tests.support.http_server import RunningServer, running

WORDS = ("alpha ", "be", "ta ga", "mma", " delta")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """``chain`` says "alpha beta gamma delta", ``dice`` draws from 64 equal ids, ``tiny`` is random."""
    folder = tmp_path_factory.mktemp("server")
    words = toys.toy_bpe(words=WORDS)
    models = {
        "chain": toys.chain(folder, WORDS, tokenizer=words),
        "dice": toys.logits(folder, [0.0] * 64),
        "tiny": toys.tiny_llama(folder),
    }
    with running(folder, models) as running_server:
        yield running_server
