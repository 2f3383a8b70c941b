"""What a cluster is told, and how it reaches every process of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rase import env
from rase.cluster.config import Config, models_of, read_config
from rase.errors import InvalidSetting


@pytest.fixture(autouse=True)
def no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("RASE_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("given", "low", "high"), [
    ({}, 1, 1), ({"RASE_REPLICAS": "3"}, 3, 3), ({"RASE_MAX_REPLICAS": "4"}, 1, 4),
    ({"RASE_MIN_REPLICAS": "2"}, 2, 2), ({"RASE_MIN_REPLICAS": "2", "RASE_MAX_REPLICAS": "5"}, 2, 5),
    ({"RASE_REPLICAS": "3", "RASE_MIN_REPLICAS": "1"}, 1, 3),
])  # fmt: skip
def test_the_number_of_replicas(
    given: dict[str, str], low: int, high: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    config = read_config(["m"])
    assert (config.low, config.high) == (low, high)
    options = config.engine_options()
    if low == high:
        assert options["num_replicas"] == low and "autoscaling_config" not in options
    else:
        found = options["autoscaling_config"]
        assert (found["min_replicas"], found["max_replicas"]) == (low, high) and "num_replicas" not in options
    assert config.limit == high * 64 + 32 < options["max_ongoing_requests"]


def test_fewer_at_most_than_at_least_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_MIN_REPLICAS", "3")
    monkeypatch.setenv("RASE_MAX_REPLICAS", "2")
    with pytest.raises(InvalidSetting, match="at most max_replicas, 2, found 3"):
        read_config(["m"])


def test_settings_reach_the_replicas_and_secrets_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rase.toml").write_text('max_queue = 5\nkv = "q8_0"\nmodels = ["a", "b"]\n')
    monkeypatch.setenv("RASE_API_KEY", "secret-secret")
    monkeypatch.setenv("RASE_NUMERICS", "portable")
    monkeypatch.setenv("RASE_PREFIX_STORE", "kept")
    with env.command():
        env.choose("RASE_MAX_BATCH_SEQS", "7")
        env.choose("RASE_STORE", "here")
        config = read_config()
    assert config.models == ("a", "b") and (config.together, config.queue) == (7, 5)
    assert config.given == {
        "RASE_MAX_QUEUE": "5", "RASE_KV": "q8_0", "RASE_MODELS": "a,b", "RASE_MAX_BATCH_SEQS": "7",
        "RASE_STORE": str(tmp_path / "here"),
    }  # fmt: skip
    assert config.inherited == {"RASE_NUMERICS": "portable", "RASE_PREFIX_STORE": str(tmp_path / "kept")}
    assert "secret" not in repr(config)


def test_a_replica_takes_what_is_given_and_its_own_before_what_is_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place: dict[str, str] = {"RASE_KV": "f16", "RASE_PREFILL": "f32"}
    monkeypatch.setattr(os, "environ", place)
    Config(
        models=(), cpus=3, given={"RASE_KV": "q8_0"}, inherited={"RASE_PREFILL": "int8", "RASE_GPU": "0"}
    ).enter()
    assert place == {
        "RASE_KV": "q8_0", "RASE_PREFILL": "f32", "RASE_GPU": "0",
        "RASE_NUM_THREADS": "3", "RAYON_NUM_THREADS": "3",
    }  # fmt: skip
    place.clear()
    Config(models=(), cpus=3, given={"RASE_NUM_THREADS": "1"}).enter()
    assert place == {"RASE_NUM_THREADS": "1"}


def test_processors_are_shared_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from rase.cluster import config as module

    monkeypatch.setattr(module, "_cores", lambda: 8)
    monkeypatch.setenv("RASE_REPLICAS", "2")
    assert read_config(["a"]).cpus == 4 and read_config(["a", "b"]).cpus == 2
    assert read_config(["a"], shared=True).cpus == 8
    monkeypatch.setenv("RASE_REPLICA_CPUS", "3")
    assert read_config(["a"]).cpus == 3


def test_which_models(tmp_path: Path) -> None:
    class Store:
        def __init__(self, *ids: str) -> None:
            self.ids = ids

        def get(self, id: str) -> Any:
            return type("Manifest", (), {"id": id})

        def list(self) -> Any:
            return [self.get(id) for id in self.ids]

    assert [one.id for one in models_of(Store("a", "b"), ["b", "a", "b"])] == ["b", "a"]
    assert [one.id for one in models_of(Store("a"), [])] == ["a"]
    for store in (Store(), Store("a", "b")):
        with pytest.raises(InvalidSetting, match="the ids of the models to serve"):
            models_of(store, [])
