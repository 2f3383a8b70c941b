"""SessionCache: one load per model, reload on change, parallel loads, clear in the middle, fork."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import rase.session
from rase.completion import Piece, TextRequest, prepare, run
from rase.engine.config import GenerationConfig
from rase.errors import Cancelled, EngineError, IntegrityMismatch, ModelNotFound
from rase.session import ModelSession, SessionCache
from rase.store import open_store
from tests.support import toys
from tests.support.processes import in_child


@pytest.fixture
def store(tmp_path: Path):
    registry = open_store(tmp_path / "store")
    registry.import_local("a", toys.chain(tmp_path, ["a", "b"], name="first"))
    registry.import_local("b", toys.chain(tmp_path, ["b", "c"], name="second"))
    return registry


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """Ids in the order in which they were loaded."""
    seen: list[str] = []
    real = ModelSession.load.__func__

    def load(cls, manifest, *args, **kwargs):
        seen.append(manifest.id)
        return real(cls, manifest, *args, **kwargs)

    monkeypatch.setattr(ModelSession, "load", classmethod(load))
    return seen


def text(session: ModelSession, on_piece=None, **config) -> str:
    request = TextRequest(
        prompt="Hi ", config=GenerationConfig(**({"temperature": 0.0, "max_tokens": 9} | config))
    )
    return run(session, prepare(session, request), on_piece).text


def in_threads(*work) -> list[object]:
    """What each function returned or raised, run at the same time."""
    results: list[object] = [None] * len(work)

    def call(index: int) -> None:
        try:
            results[index] = work[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_a_second_call_gives_the_same_session(store, loads) -> None:
    cache = SessionCache()
    assert cache.get_or_load(store, "a") is cache.get_or_load(store, "a", "cpu")
    assert loads == ["a"]
    assert cache.sessions() == [cache.get_or_load(store, "a")]


def test_another_format_of_the_kv_cache_is_loaded_beside(store, loads) -> None:
    cache = SessionCache()
    small = cache.get_or_load(store, "a", kv="q8_0")
    assert small is cache.get_or_load(store, "a", kv="q8_0") is not cache.get_or_load(store, "a")
    assert small.numerics_class.endswith("/kv-q8_0") and loads == ["a", "a"]


def test_many_callers_share_one_load(store, loads) -> None:
    cache = SessionCache()
    sessions = in_threads(*[lambda: cache.get_or_load(store, "a")] * 8)
    assert len(set(map(id, sessions))) == 1 and isinstance(sessions[0], ModelSession), sessions
    assert loads == ["a"]


def test_different_models_load_at_the_same_time(store, monkeypatch) -> None:
    both = threading.Barrier(2, timeout=10)  # passes only when both loads are inside at once
    real = ModelSession.load.__func__

    def load(cls, manifest, *args, **kwargs):
        both.wait()
        return real(cls, manifest, *args, **kwargs)

    monkeypatch.setattr(ModelSession, "load", classmethod(load))
    cache = SessionCache()
    found = in_threads(lambda: cache.get_or_load(store, "a"), lambda: cache.get_or_load(store, "b"))
    assert [text(session) for session in found] == ["ab", "bc"]


def test_a_new_hash_in_the_manifest_reloads(store, loads, tmp_path) -> None:
    cache = SessionCache()
    old = cache.get_or_load(store, "a")
    store.import_local("a", toys.chain(tmp_path, ["x", "y"], name="third"))
    new = cache.get_or_load(store, "a")
    assert (text(old), text(new)) == ("ab", "xy"), "the old session lives as long as someone uses it"
    assert loads == ["a", "a"]
    assert cache.sessions() == [new]


def test_a_failed_load_is_raised_to_all_and_forgotten(store, loads, tmp_path) -> None:
    cache = SessionCache()
    path = Path(store.get("a").weights)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    errors = in_threads(*[lambda: cache.get_or_load(store, "a")] * 3)
    assert all(isinstance(error, IntegrityMismatch) for error in errors), errors
    assert len(set(map(id, errors))) == 3, "each thread gets an exception of its own"
    path.write_bytes(good)
    assert text(cache.get_or_load(store, "a")) == "ab"


def test_an_unknown_id(store) -> None:
    with pytest.raises(ModelNotFound):
        SessionCache().get_or_load(store, "zzz")


def test_a_cancelled_load_leaves_the_next_caller_to_load(store, loads) -> None:
    cache = SessionCache()
    inside, go = threading.Event(), threading.Event()

    def cancel() -> bool:
        inside.set()
        go.wait(10)
        return True

    def second() -> ModelSession:
        inside.wait(10)
        threading.Timer(0.05, go.set).start()
        return cache.get_or_load(store, "a")

    first, session = in_threads(lambda: cache.get_or_load(store, "a", cancelled=cancel), second)
    assert isinstance(first, Cancelled) and text(session) == "ab"
    assert loads == ["a", "a"]


def test_an_interrupted_load_leaves_nothing_behind(store, monkeypatch) -> None:
    def interrupted(cls, *args, **kwargs):
        raise KeyboardInterrupt

    cache = SessionCache()
    with monkeypatch.context() as patch:
        patch.setattr(ModelSession, "load", classmethod(interrupted))
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_load(store, "a")
    assert text(cache.get_or_load(store, "a")) == "ab"


def test_clear_while_a_generation_runs(store, loads) -> None:
    cache = SessionCache()

    def clear(piece: Piece) -> None:
        cache.clear()

    assert text(cache.get_or_load(store, "a"), clear) == "ab"
    assert cache.sessions() == []
    assert text(cache.get_or_load(store, "a")) == "ab"
    assert loads == ["a", "a"]


def test_discard_unloads_one_model(store, loads) -> None:
    cache = SessionCache()
    first, second = cache.get_or_load(store, "a"), cache.get_or_load(store, "b")
    cache.discard(first)
    assert cache.sessions() == [second]


def test_different_models_generate_at_the_same_time(store) -> None:
    cache = SessionCache()
    first, second = cache.get_or_load(store, "a"), cache.get_or_load(store, "b")
    both = threading.Barrier(2, timeout=10)  # passes only when both callbacks are inside at once

    def meet(piece: Piece) -> None:
        if piece.text == "b":
            both.wait()

    assert in_threads(lambda: text(first, meet), lambda: text(second, meet)) == ["ab", "bc"]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # fork in a process with threads: what is tested here
def test_a_forked_child_loads_its_own(store) -> None:
    cache = SessionCache()
    inherited = cache.get_or_load(store, "a")
    assert text(inherited) == "ab"

    def child() -> str:
        own = cache.get_or_load(store, "a")
        return f"{own is not inherited} {text(own)}"

    assert in_child(child) == "True ab"
    assert text(cache.get_or_load(store, "a")) == "ab" and cache.get_or_load(store, "a") is inherited


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_thread_loads_and_holds_locks(store, monkeypatch) -> None:
    cache = SessionCache()
    inside, go = threading.Event(), threading.Event()
    real = ModelSession.load.__func__

    def slow(cls, manifest, *args, **kwargs):
        inside.set()
        go.wait(10)
        return real(cls, manifest, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ModelSession, "load", classmethod(slow))
        thread = threading.Thread(target=lambda: cache.get_or_load(store, "a"))
        thread.start()
        assert inside.wait(10)
    with cache._mutex:
        said = in_child(lambda: text(cache.get_or_load(store, "a")))
    go.set()
    thread.join(10)
    assert said == "ab"


def test_errors_survive_copying() -> None:
    import copy

    error = IntegrityMismatch("m", "a" * 64, "b" * 64, path="/x")
    other = copy.copy(error)
    assert type(other) is IntegrityMismatch and str(other) == str(error) and other.path == "/x"
    assert isinstance(other, EngineError) and rase.session is not None
