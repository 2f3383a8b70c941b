"""The Dockerfile and the unit of systemd: what can be said of them without running them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rase.settings import SETTINGS
from tests.container.dockerfile import ROOT, Instruction, parse

STEPS = parse((ROOT / "Dockerfile").read_text("utf-8"))
UNIT = ROOT / "wheelhouse-ci" / "rase.service"


def last_stage() -> list[Instruction]:
    start = max(number for number, step in enumerate(STEPS) if step.word == "FROM")
    return STEPS[start:]


def test_the_image_that_runs_has_no_compiler_and_no_rights() -> None:
    stage = last_stage()
    words = [step.word for step in stage]
    assert sum(step.word == "FROM" for step in STEPS) == 2
    assert not any("gcc" in step.rest or "-dev" in step.rest for step in stage)
    user = next(step.rest for step in stage if step.word == "USER")
    assert user not in ("root", "0") and words.index("USER") < words.index("ENTRYPOINT")
    assert not any(step.word in ("RUN", "COPY") for step in stage[words.index("USER") :])
    assert "HEALTHCHECK" in words and "STOPSIGNAL" in words


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    for step in STEPS:
        if step.word == "COPY" and "--from" not in step.rest:
            for name in step.rest.split()[:-1]:
                assert (ROOT / name).exists() and f"!{name.removeprefix('./')}" in ignored


def test_settings_in_them_are_known() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8") + UNIT.read_text("utf-8")
    names = set(re.findall(r"\bRASE_[A-Z_]+(?==)", text))
    assert {"RASE_HOST", "RASE_STORE"} <= names <= {*SETTINGS, "RASE_CONFIG"}


def test_unknown_instructions_are_not_passed_over() -> None:
    assert parse("# x\nRUN a \\\n    && b\n") == [Instruction("RUN", "a && b")]
    with pytest.raises(ValueError, match="ONBUILD"):
        parse("ONBUILD RUN a")


def test_the_unit(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    service = unit["Service"]
    assert service["DynamicUser"] == "yes" and service["NoNewPrivileges"] == "yes"
    assert int(service["TimeoutStopSec"]) > SETTINGS["RASE_DRAIN_TIMEOUT"].default + 3
    if shutil.which("systemd-analyze") is None:
        return  # what follows is systemd's own opinion
    there = UNIT.read_text("utf-8").replace("/opt/rase/bin/rase", sys.executable)
    (tmp_path / "rase.service").write_text(there)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "rase.service")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
