"""``rase bench``: a table for people, JSON, a picture, and refusals before anything is loaded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rase.benchmark import speeds
from tests.cli.conftest import Rase

QUICK = ("--prompt", "8", "--context", "8", "--tokens", "2", "--rounds", "2")


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "BUFFER", 1 << 24)


def test_a_table_and_a_picture(rase: Rase, hello: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RASE_BACKEND", "cpu")
    result = rase("bench", hello, *QUICK, "--context", "20", "--plot", tmp_path / "roof.svg")
    assert result.code == 0, result.err
    names = [line.split("  ")[0] for line in result.out.splitlines()]
    assert names[-3:] == ["prefill 8", "decode at 8", "decode at 20"] and "limits" in names
    assert "decode behind 20 tokens, 2 rounds" in result.err and "drew" in result.err
    assert b"decode at 20" in (tmp_path / "roof.svg").read_bytes()


def test_json_of_a_registered_model(rase: Rase, hello: Path) -> None:
    rase("model", "import", hello)
    result = rase("bench", "hello", *QUICK, "--json", "--quiet")
    assert result.code == 0 and result.err == ""
    found = json.loads(result.out)
    assert found["limits"] is None  # the reference backend has none
    assert [(s["what"], s["tokens"], len(s["seconds"])) for s in found["speeds"]] == [
        ("prefill", 8, 2), ("decode", 2, 2)]  # fmt: skip
    decode = found["speeds"][1]
    assert decode["tokens_per_s"] == pytest.approx(2 / (sum(decode["seconds"]) / 2))
    assert decode["gb_per_s"] == pytest.approx(found["cost"]["token_bytes"] * decode["tokens_per_s"] / 1e9)


def test_refusals_come_before_the_model_is_loaded(rase: Rase, tmp_path: Path, monkeypatch) -> None:
    result = rase("bench", tmp_path / "absent.gguf", "--plot", tmp_path / "roof.xyz")
    assert result.code == 2 and "a picture of kind 'xyz'" in result.err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = rase("bench", tmp_path / "absent.gguf", "--plot", tmp_path / "roof.png")
    assert result.code == 1 and 'pip install "rase-llm[plot]"' in result.err
    assert rase("bench", tmp_path / "absent.gguf").code == 3


def test_ctrl_c(command: list[str], hello: Path) -> None:
    with subprocess.Popen(
        [*command, "bench", str(hello), *QUICK[:6], "--rounds", "100000000"],
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            for line in process.stderr:
                if line.startswith("decode") or line.startswith("prefill"):
                    break
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read().endswith("error: interrupted\n")
        finally:
            process.kill()
