"""What ``rase cluster run`` refuses before it starts anything."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rase.cluster.config import Config
from rase.cluster.run import run
from rase.errors import InvalidSetting, ModelNotFound
from rase.registry import ModelRegistry
from tests.support.stores import toy_gguf


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is said to be there; importing it would be an error."""
    monkeypatch.setitem(sys.modules, "rase.cluster.installed", ModuleType("rase.cluster.installed"))
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("RASE_API_KEY", "RASE_API_KEY_FILE", "RASE_INSECURE", "RASE_RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RASE_PORT", "0")


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    registry = ModelRegistry.open(tmp_path / "store")
    registry.import_local("one", toy_gguf(tmp_path / "one.gguf"))
    return registry


def test_an_address_of_others_needs_keys(registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_HOST", "0.0.0.0")
    with pytest.raises(InvalidSetting, match=r"reach 0\.0\.0\.0: expected API keys, found none"):
        run(Config(models=("one",)), registry)
    for name, value in (("RASE_API_KEY", "secret-key"), ("RASE_INSECURE", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(ImportError):  # it goes on
                run(Config(models=("one",)), registry)


def test_a_port_that_is_taken_and_a_model_that_is_not_there(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RASE_PORT", str(taken.getsockname()[1]))
        with pytest.raises(InvalidSetting, match="the port is in use"):
            run(Config(models=("one",)), registry)
    with pytest.raises(ModelNotFound):
        run(Config(models=("two",)), registry)
