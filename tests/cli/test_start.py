"""Starting: help without the heavy libraries, usage errors on one line, both ways to call it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import Rase

HEAVY = (
    "numpy",
    "huggingface_hub",
    "tokenizers",
    "jinja2",
    "rich",
    "asyncio",
    "starlette",
    "rase._kernels.kernels",
)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["model", "--help"], ["model", "pull", "--help"], ["model", "list"]]
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from rase.cli import main
main({arguments})
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_m_rase_is_the_command(command: list[str]) -> None:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("rase ")
    done = subprocess.run([*command, "model", "inspect", "absent"], capture_output=True, text=True)
    assert done.returncode == 3 and done.stdout == "" and "Traceback" not in done.stderr


def test_every_command_has_help(rase: Rase) -> None:
    from rase.cli.app import CLUSTER, MODEL, ROOT, RUNTIME

    for path in [
        [],
        *([name] for name in ROOT),
        *(["model", n] for n in MODEL),
        *(["runtime", n] for n in RUNTIME),
        *(["cluster", n] for n in CLUSTER),
    ]:
        result = rase(*path, "--help")
        assert result.code == 0 and "Usage: rase" in result.out and "--store" in result.out, path
    listed = rase("model", "--help").out
    assert all(name in listed for name in MODEL)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("mdoel", "Did you mean 'model'?"),
        ("list", "Did you mean 'model list'?"),
        ("model imprt", "Did you mean 'import'?"),
        ("model list --jsn", "Did you mean '--json'?"),
        ("model inspect", "Missing argument 'MODEL'"),
        ("model pull", "--repo and --file"),
        ("model pull pypi:a==1 --repo o/r", "either a source or --repo"),
        ("model pull hf:o/r/f --tokenizer-file t.json", "--tokenizer-repo"),
        ("model import x --kind chat", "generator"),
        ("model import x --context-length 0", "context-length"),
        ("serve --port x", "0 to 65535"),
        ("runtime probe --device tpu", "auto"),
    ],
)
def test_usage_errors_are_one_line_with_the_next_step(rase: Rase, line: str, says: str) -> None:
    result = rase(*line.split())
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    assert says in result.err and "--help'" in result.err


def test_a_bare_call_shows_the_help(rase: Rase) -> None:
    result = rase()
    assert "Usage: rase" in result.out + result.err and "Commands:" in result.out + result.err


def test_debug_shows_the_traceback(rase: Rase) -> None:
    assert "Traceback" not in rase("model", "inspect", "absent").err
    result = rase("model", "inspect", "absent", "--debug")
    assert result.code == 3 and "Traceback" in result.err and "error: no model 'absent'" in result.err


def test_an_unexpected_error_is_one_line_too(rase: Rase, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("rase.cli.common.Settings.open_store", fail)
    result = rase("model", "list")
    assert result.code == 1 and result.err == (
        "error: RuntimeError: two lines. Run the command again with --debug for the details.\n"
    )


def test_serve_without_its_packages_says_what_to_install(rase: Rase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = rase("serve")
    assert result.code == 1 and "pip install 'rase-llm[server]'" in result.err


def test_the_reader_of_a_pipe_may_leave(command: list[str]) -> None:
    script = f"set -o pipefail; {' '.join(command)} --help | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode in (0, 1) and done.stderr == ""
