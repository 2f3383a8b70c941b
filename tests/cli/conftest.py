"""The command line in this process (``rase``) and as a process (``command``), on a store of its own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rase.cli import main
from tests.support.toys import chain


@dataclass
class Result:
    code: int
    out: str
    err: str


Rase = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("RASE_BACKEND", "reference")  # what is tested here is the same on every backend
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def rase(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rase:
    def run(*arguments: str | os.PathLike[str], stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        capsys.readouterr()
        code = main([os.fspath(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-m", "rase"]


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A model file that answers "Helo" to everything."""
    return chain(tmp_path, ["H", "e", "l", "o"], name="hello")


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A model file that answers "abab…" until its context is full."""
    return chain(tmp_path, ["a", "b"], then="a", name="endless")
