"""Ray is imported by nobody who does not ask for it; without it the next step is told."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rase.cli import main
from tests.support.toys import chain

CODE = """
import sys
import rase, rase.cli.app, rase.server.app, rase.server.serve, rase.cluster.replica, rase.cluster.engines
import rase.cluster.config, rase.cluster.run, rase.cluster.data, rase.cluster.front, rase.cli.cluster
print([name for name in sys.modules if name.split(".")[0] == "ray"])
"""


def test_nothing_of_ray_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else real(name, *rest)
    )
    for name in ("rase.cluster.installed", "rase.cluster.ray"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_without_the_extra_the_command_says_what_to_install(
    without_ray: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RASE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["model", "import", str(chain(tmp_path, ["a"])), "--id", "one"]) == 0
    capsys.readouterr()
    assert main(["cluster", "run", "one", "--replicas", "2"]) == 1
    error = capsys.readouterr().err
    assert (
        "expected the package 'ray', found it is not installed" in error
        and 'pip install "rase-llm[ray]"' in error
    )
    assert len(error.splitlines()) == 1


def test_without_the_extra_the_target_of_serve_run_says_so_too(without_ray: Any) -> None:
    from rase.errors import BackendUnavailable

    with pytest.raises(BackendUnavailable, match="rase-llm\\[ray\\]"):
        import rase.cluster.ray  # noqa: F401


def test_rays_reports_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, rase.cluster; print(os.environ['RAY_USAGE_STATS_ENABLED'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
