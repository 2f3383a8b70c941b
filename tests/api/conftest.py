"""Fixtures of the session and API tests: toy models that are loaded once per test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rase.session import ModelSession
from tests.support import toys


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the toy model files of this run lie."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="session")
def tiny_path(folder: Path) -> Path:
    """A random model: its answers are arbitrary but fixed."""
    return toys.tiny_llama(folder, name="tiny-api")


@pytest.fixture(scope="session")
def endless_path(folder: Path) -> Path:
    """A chain a, b, c, a, ... that never ends by itself."""
    return toys.chain(folder, ["a", "b", "c"], then="a", name="endless")


@pytest.fixture
def load() -> Callable[..., ModelSession]:
    """Load a toy file as a session."""
    return ModelSession.load_file


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> ModelSession:
    """A session of the random model, shared: leave it as you found it."""
    return ModelSession.load_file(tiny_path)


@pytest.fixture(scope="session")
def endless(endless_path: Path) -> ModelSession:
    """A session of the endless chain, shared."""
    return ModelSession.load_file(endless_path)
