"""How long models stay: keep-alive, pins, holders, eviction by memory; generations survive all of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import rase
from rase import metrics
from rase.completion import Piece, TextRequest, prepare, run
from rase.duration import FOREVER, seconds
from rase.engine.config import GenerationConfig
from rase.errors import InsufficientMemory, InvalidSetting
from rase.session import ModelSession
from rase.session_cache import SessionCache, process_cache
from rase.store import open_store
from tests.support import toys
from tests.support.http_server import wait_until


@pytest.fixture
def store(tmp_path: Path):
    registry = open_store(tmp_path / "store")
    for name in ("a", "b", "c"):
        registry.import_local(name, toys.chain(tmp_path, [name, "x"], name=name))
    return registry


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of a test: looks again after 20 ms instead of a second."""
    monkeypatch.setattr("rase.session_cache.BUSY_SECONDS", 0.02)
    monkeypatch.setattr("rase.session_cache.GRACE_SECONDS", 0.02)


def ids(cache: SessionCache) -> list[str]:
    return sorted(session.id for session in cache.sessions())


def ask(session: ModelSession, on_piece=None) -> str:
    config = GenerationConfig(temperature=0.0, max_tokens=9)
    return run(session, prepare(session, TextRequest(prompt="Hi ", config=config)), on_piece).text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("300", 300), ("5m", 300), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), (0, 0), ("0", 0),
        (2.5, 2.5), (-1, FOREVER), ("-1", FOREVER), ("-1s", FOREVER), (10**400, FOREVER),
    ],
)  # fmt: skip
def test_durations(text, value) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    "bad", ["", "-", "5 m", "5x", "m", "1m2", "1e3", "inf", True, None, float("nan"), [5]]
)
def test_what_is_no_duration(bad) -> None:
    with pytest.raises(ValueError):
        seconds(bad)


def test_a_model_goes_when_its_time_is_over_and_comes_again(store) -> None:
    cache = SessionCache(keep_alive=0.1)
    before = metrics.of("a").snapshot().counters["unloads"]
    cache.get_or_load(store, "a")
    assert ids(cache) == ["a"]
    assert wait_until(lambda: not cache.sessions(), 10) > 0.02
    assert metrics.of("a").snapshot().counters["unloads"] == before + 1
    assert ask(cache.get_or_load(store, "a")) == "ax"


def test_every_use_starts_the_time_again(store) -> None:
    cache = SessionCache(keep_alive=0.5)
    session = cache.get_or_load(store, "a")
    for _ in range(8):
        time.sleep(0.1)
        assert cache.get_or_load(store, "a") is session
    ask(session)
    assert time.monotonic() - session.used_at < 0.3, "the end of a generation is a use"


def test_by_default_models_stay_and_no_thread_watches(store) -> None:
    cache = SessionCache()
    cache.get_or_load(store, "a")
    assert cache.loaded()[0].expires_at is None
    assert not cache._clock._running


def test_the_watching_thread_ends_when_nothing_can_expire(store) -> None:
    cache = SessionCache(keep_alive=0.05)
    cache.get_or_load(store, "a")
    assert cache._clock._running
    wait_until(lambda: not cache._clock._running, 10)
    assert not cache.sessions()


def test_a_time_can_be_set_for_one_model_and_zero_is_at_once(store) -> None:
    cache = SessionCache()
    first, second = cache.get_or_load(store, "a"), cache.get_or_load(store, "b")
    cache.keep(first, seconds=0)
    wait_until(lambda: ids(cache) == ["b"], 10)
    cache.keep(second, seconds=0.05)
    cache.keep(second, seconds=FOREVER)
    time.sleep(0.2)
    assert ids(cache) == ["b"]


def test_what_is_pinned_or_held_stays(store) -> None:
    cache = process_cache()
    cache.clear()  # what other tests of this process left
    try:
        model = rase.load("a", store.root)
        cache.keep(model.session, seconds=0)
        pinned = cache.get_or_load(store, "b")
        cache.keep(pinned, seconds=0, pinned=True)
        time.sleep(0.2)
        assert ids(cache) == ["a", "b"], "a Model object holds the one, a pin the other"
        assert {model.id: model.pinned for model in cache.loaded()} == {"a": False, "b": True}
        cache.keep(pinned, pinned=False)
        wait_until(lambda: ids(cache) == ["a"], 10)
        model.close()
        assert not cache.sessions()
    finally:
        cache.clear()


def test_a_generation_outlives_the_time_and_unload_models(store) -> None:
    cache = SessionCache(keep_alive=0)
    session, seen = cache.get_or_load(store, "a"), []

    def slowly(piece: Piece) -> None:
        seen.append(piece.text)
        time.sleep(0.2)

    assert ask(session, slowly) == "ax", seen
    model = rase.load("b", store.root)
    stream = model.stream_completion("Hi ", temperature=0.0)
    rase.unload_models()
    assert "".join(stream) == "bx"


def test_over_the_budget_the_model_that_was_used_least_recently_goes(store) -> None:
    size = Path(store.get("a").weights).stat().st_size
    cache = SessionCache(budget=int(2.5 * size))
    cache.get_or_load(store, "a")
    cache.get_or_load(store, "b")
    cache.get_or_load(store, "a")
    cache.get_or_load(store, "c")
    assert ids(cache) == ["a", "c"]


def test_what_is_busy_pinned_or_held_is_not_evicted(store) -> None:
    size = Path(store.get("a").weights).stat().st_size
    cache = SessionCache(budget=int(1.5 * size))
    session = cache.get_or_load(store, "a")
    refused: list[InsufficientMemory] = []

    def meanwhile(piece: Piece) -> None:
        work = threading.Thread(target=attempt)
        work.start()
        work.join(20)

    def attempt() -> None:
        try:
            cache.get_or_load(store, "b")
        except InsufficientMemory as error:
            refused.append(error)

    assert ask(session, meanwhile) == "ax"
    assert refused and refused[0].available == int(1.5 * size) - size
    assert ids(cache) == ["a"]
    cache.keep(session, pinned=True)
    with pytest.raises(InsufficientMemory, match="RASE_MEMORY_BUDGET"):
        cache.get_or_load(store, "b")
    cache.keep(session, pinned=False)
    cache.get_or_load(store, "b")
    assert ids(cache) == ["b"]


def test_a_model_that_fits_no_budget_is_refused_with_the_numbers(store) -> None:
    cache = SessionCache(budget=100)
    before = metrics.of("a").snapshot().counters["loads_failed"]
    with pytest.raises(InsufficientMemory) as caught:
        cache.get_or_load(store, "a")
    assert caught.value.available == 100 and caught.value.needed > 100
    assert metrics.of("a").snapshot().counters["loads_failed"] == before + 1
    assert not cache.sessions()


def test_where_the_machine_has_too_little_idle_models_make_room(store, monkeypatch) -> None:
    cache = SessionCache()
    cache.get_or_load(store, "a")
    real = ModelSession.load.__func__

    def load(cls, manifest, *args, **kwargs):
        if cache.sessions():
            raise InsufficientMemory("the machine", needed=2, available=1)
        return real(cls, manifest, *args, **kwargs)

    monkeypatch.setattr(ModelSession, "load", classmethod(load))
    assert ask(cache.get_or_load(store, "b")) == "bx"
    assert ids(cache) == ["b"]


def test_what_is_loaded_can_be_listed(store) -> None:
    cache = SessionCache(keep_alive=50)
    for name in ("a", "b", "a"):
        cache.get_or_load(store, name)
    now = time.time()
    first, second = cache.loaded()
    assert (first.id, second.id) == ("a", "b")
    assert first.weights == Path(store.get("a").weights).stat().st_size
    assert first.expires_at == pytest.approx(now + 50, abs=5) and first.used_at == pytest.approx(now, abs=5)
    assert (first.active, first.pinned, first.device) == (0, False, "cpu")


def test_settings_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from rase import env

    assert env.get("RASE_KEEP_ALIVE") == 300 and env.get("RASE_MEMORY_BUDGET") is None
    monkeypatch.setenv("RASE_KEEP_ALIVE", "-1")
    for text, value in (("12GB", 12 * 10**9), ("1.5 GiB", 3 * 2**29), ("4096", 4096), ("8M", 8_000_000)):
        monkeypatch.setenv("RASE_MEMORY_BUDGET", text)
        assert env.get("RASE_MEMORY_BUDGET") == value
    assert env.get("RASE_KEEP_ALIVE") == FOREVER
    for bad in ("much", "-1", "GB", "1 PB"):
        monkeypatch.setenv("RASE_MEMORY_BUDGET", bad)
        with pytest.raises(InvalidSetting, match="RASE_MEMORY_BUDGET"):
            env.get("RASE_MEMORY_BUDGET")
    with env.command(), pytest.raises(InvalidSetting, match="--keep-alive"):
        env.choose("RASE_KEEP_ALIVE", "soon")
