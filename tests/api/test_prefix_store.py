"""The prefix store as a user sees it: one setting, and a restarted process knows the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

import rase
from rase.completion import Completion, TextRequest, prepare, run
from rase.engine.config import GenerationConfig
from rase.errors import InvalidSetting
from rase.session import ModelSession
from rase.session_cache import SessionCache
from rase.store import open_store
from tests.support import toys

TEXT = "A long system prompt. " * 20


def ask(session: ModelSession) -> Completion:
    config = GenerationConfig(max_tokens=4, temperature=0.0)
    return run(session, prepare(session, TextRequest(prompt=TEXT, config=config)))


def flush(session: ModelSession) -> None:
    tree = session.scheduler._batching.tree
    assert tree is not None and tree.disk is not None and tree.disk.flush(10)


def test_the_variable_makes_every_model_keep_its_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toys.tiny_llama(tmp_path)
    monkeypatch.setenv("RASE_PREFIX_STORE", str(tmp_path / "kept"))
    first = ModelSession.load_file(path)
    right = ask(first)
    flush(first)
    again = ask(ModelSession.load_file(path))
    assert (
        right.cached_tokens == 0
        and again.cached_tokens >= len(prepare(first, TextRequest(prompt=TEXT)).ids) - 32
    )
    assert again.choices[0].token_ids == right.choices[0].token_ids
    assert ask(ModelSession.load_file(path, context_length=512)).cached_tokens == 0, (
        "rope tables depend on it"
    )


def test_a_session_cache_and_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "store")
    store.import_local("tiny", toys.tiny_llama(tmp_path))
    options = {"prefix_store": tmp_path / "kept", "prefix_store_size": 10**6}
    for found in (False, True):
        session = SessionCache(**options).get_or_load(store, "tiny")  # type: ignore[arg-type]
        assert bool(ask(session).cached_tokens) is found
        flush(session)
    assert sum(path.stat().st_size for path in (tmp_path / "kept").iterdir()) <= 10**6
    monkeypatch.setattr(rase, "__version__", "0.0.other")
    session = SessionCache(**options).get_or_load(store, "tiny")  # type: ignore[arg-type]
    assert ask(session).cached_tokens == 0, "another version may compute other bits"


def test_a_bad_folder_is_an_error_and_a_model_without_the_cache_has_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toys.tiny_llama(tmp_path)
    monkeypatch.setenv("RASE_PREFIX_CACHING", "0")
    ModelSession.load_file(path).keep_prefixes(tmp_path / "kept")
    with pytest.raises(InvalidSetting, match="the prefix store"):
        ModelSession.load_file(path).keep_prefixes(path)
