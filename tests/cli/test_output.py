"""Output that cannot be written or must not be shown: closed streams, full disks, control characters."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Rase


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(command: list[str], closed: str) -> None:
    for arguments, code in (("--help", 0), ("model list --json", 0), ("model inspect absent", 3)):
        done = subprocess.run(
            ["bash", "-c", f"{' '.join(command)} {arguments} {closed}"], capture_output=True, text=True
        )
        assert done.returncode == code, (arguments, done.stderr)
        assert "Error" not in done.stderr, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_named(command: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(command)} model list --json > /dev/full"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "error: the output could not be written: No space left on device\n"


def test_nothing_that_is_printed_moves_the_cursor(rase: Rase, tmp_path: Path, hello: Path) -> None:
    """Names of files, and texts in manifests, bring any character along."""
    rase("model", "import", hello)
    manifests = tmp_path / "store" / "manifests"
    text = (manifests / "hello.toml").read_text()
    (manifests / "bad.toml").write_text('id = "\\u001b]0;title\\u0007"')
    (manifests / "\x1b[31m.toml").write_text(text)
    odd = text.replace('id = "hello"', 'id = "odd"').replace('"llama"', '"\\u001b[2Jllama\\u202e"')
    (manifests / "odd.toml").write_text(odd)
    evil = tmp_path / "\x1b[2J\u202e.gguf"
    evil.write_bytes(hello.read_bytes()[:100])
    calls = (
        ("list",),
        ("verify",),
        ("inspect", "odd"),
        ("import", evil),
        ("remove", "odd"),
        ("verify", "bad"),
    )
    for arguments in calls:
        result = rase("model", *arguments)
        for output in (result.out, result.err):
            assert not {"\x1b", "\x07", "\u202e"} & set(output), (arguments, output)


def test_output_that_is_not_utf8(rase: Rase, command: list[str], tmp_path: Path, hello: Path) -> None:
    path = hello.rename(tmp_path / "模型 ü.gguf")
    assert rase("model", "import", path, "--id", "u").code == 0
    for encoding in ("latin-1", "ascii", "utf-8"):
        environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        for arguments in ("list", "inspect u", "inspect u --json", "verify u"):
            done = subprocess.run(
                [*command, "model", *arguments.split()], capture_output=True, env=environment
            )
            assert done.returncode == 0 and done.stderr == b"", (encoding, arguments, done.stderr)
            if "--json" in arguments:
                assert json.loads(done.stdout.decode(encoding))["weights"] == str(path)
