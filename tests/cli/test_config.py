"""Settings: which of option, environment, files and default counts, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rase import env
from rase.errors import InvalidSetting
from rase.settings import SETTINGS, key_of, option_of
from tests.cli.conftest import Rase


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The user's own file."""
    path = tmp_path / "config" / "rase" / "rase.toml"
    path.parent.mkdir(parents=True)
    return path


def shown(rase: Rase, *arguments: str) -> dict[str, tuple[object, str]]:
    result = rase("config", "show", "--json", *arguments)
    assert result.code == 0, result.err
    return {row["key"]: (row["value"], row["from"]) for row in json.loads(result.out)}


def test_option_before_environment_before_project_before_user_before_default(
    rase: Rase, project: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(rase)["max_batch_seqs"] == (64, "default")
    user.write_text("max_batch_seqs = 1\nmax_queue = 2\n")
    assert shown(rase)["max_batch_seqs"] == (1, str(user))
    own = project / "rase.toml"
    own.write_text("max_batch_seqs = 3\n")
    assert shown(rase)["max_batch_seqs"] == (3, str(own)) and shown(rase)["max_queue"] == (2, str(user))
    named = project / "other.toml"
    named.write_text("max_batch_seqs = 4\n")
    assert shown(rase, "--config", "other.toml")["max_batch_seqs"][0] == 4
    monkeypatch.setenv("RASE_CONFIG", str(named))
    assert shown(rase)["max_batch_seqs"] == (4, str(named))
    monkeypatch.setenv("RASE_MAX_BATCH_SEQS", "5")
    assert shown(rase)["max_batch_seqs"] == (5, "RASE_MAX_BATCH_SEQS")
    with env.command():
        env.choose("RASE_MAX_BATCH_SEQS", "6")
        assert env.find("RASE_MAX_BATCH_SEQS") == (6, "--max-batch-seqs")
    monkeypatch.setenv("RASE_MAX_BATCH_SEQS", "")
    assert shown(rase)["max_batch_seqs"] == (4, str(named)), "an empty variable says nothing"
    assert env.get("RASE_MAX_BATCH_SEQS") == 64, "outside of commands files do not count"
    table = rase("config", "show", "--store", "elsewhere").out
    assert "elsewhere" in table and "--store" in table and "RASE_MAX_BATCH" not in table


def test_values_are_shown_as_people_write_them(rase: Rase, project: Path) -> None:
    (project / "rase.toml").write_text(
        "port = 0\ninsecure = false\nmodels = ['a', 'b']\nkeep_alive = '90s'\n"
    )
    rows = [line.rsplit("  ", 1)[0].split() for line in rase("config", "show").out.splitlines()]
    assert ["port", "0"] in rows and ["insecure", "no"] in rows
    assert ["models", "a,", "b"] in rows and ["keep_alive", "90"] in rows


def test_config_path(rase: Rase, project: Path, user: Path) -> None:
    (project / "rase.toml").write_text("")
    lines = rase("config", "path").out.splitlines()
    assert lines == [str(project / "rase.toml"), f"{user}  (not there)".ljust(len(lines[1]))]


@pytest.mark.parametrize(("text", "words"), [
    ("max_batch_token = 5", ["unknown key 'max_batch_token'", "Did you mean 'max_batch_tokens'?"]),
    ("zzz = 5", ["unknown key 'zzz'", "rase config show"]),
    ("[server]\nport = 1", ["unknown key 'server'"]),
    ("port = true", ["port", "0 to 65535", "'true'"]),
    ("insecure = 2", ["insecure", "0 or 1"]),
    ("port = [1]", ["port", "one value", "a list"]),
    ("max_batch_seqs = 0", ["max_batch_seqs", "at least 1"]),
    ("max_batch_seqs = 1.5", ["max_batch_seqs", "whole number"]),
    ("max_batch_seqs = ", ["expected TOML"]),
    ("allow_host = 1979-05-27", ["allow_host", "a list", "a date"]),
    ("tensor_parallel_size = 0", ["tensor_parallel_size", "at least 1", "'0'"]),
    ("mem_fraction_static = 0.9", ["mem_fraction_static", "memory_budget"]),
    ("capture_sizes = [1, 0]", ["capture_sizes", "at least 1", "'1,0'"]),
    ("tp_operation_timeout_secs = -1", ["tp_operation_timeout_secs", "above 0"]),
    ("mtp_num_draft_tokens = 2", ["mtp_num_draft_tokens", "RASE_DRAFT"]),
    ("api_key = 'short'", ["api_key", "at least 8", "not shown"]),
    ("api_key = 'with blanks in it'", ["api_key", "at least 8", "not shown"]),
])  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(rase: Rase, project: Path, text: str, words: list[str]) -> None:
    (project / "rase.toml").write_text(text)
    result = rase("config", "show", "--all")
    assert result.code == 2 and result.err.count("\n") == 1
    for word in words:
        assert word in result.err
    assert rase("serve", "absent").code == 2, "at the start, and before a model is looked for"


def test_a_file_that_is_named_must_be_there(rase: Rase, project: Path) -> None:
    result = rase("model", "list", "--config", "absent.toml")
    assert result.code == 2 and "absent.toml" in result.err and "No such file" in result.err


def test_values_that_are_true_here_are_accepted(rase: Rase, project: Path) -> None:
    (project / "rase.toml").write_text(
        "tensor_parallel_size = 1\ncapture_sizes = [1, 8]\nmtp_num_draft_tokens = 0\nnum_blocks = 0\n"
        "ignore_eos = false\nenable_prefix_caching = false\nmodels = ['a', 'b']\nkeep_alive = -1\n"
    )
    found = shown(rase)
    assert found["tensor_parallel_size"][0] == 1 and found["models"][0] == ["a", "b"]
    assert found["enable_prefix_caching"][0] is False and found["keep_alive"][0] == -1


def test_what_the_device_cannot_do_is_refused_at_the_start(
    rase: Rase, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "rase.toml").write_text("tensor_parallel_size = 2\n")
    result = rase("serve", "--port", "0")
    assert result.code == 2 and "tensor_parallel_size on device 'cpu'" in result.err
    monkeypatch.setenv("RASE_TENSOR_PARALLEL_SIZE", "1")
    monkeypatch.setenv("RASE_MEMORY_BUDGET", "9" * 400)
    assert rase("serve", "--port", "0").code == 2


def test_secrets_are_not_shown(rase: Rase, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_API_KEY", "very-secret-1,very-secret-2")
    for arguments in ([], ["--json"], ["--all"]):
        result = rase("config", "show", *arguments)
        assert result.code == 0 and "very-secret" not in result.out + result.err
    assert env.get("RASE_API_KEY") == ("very-secret-1", "very-secret-2")


def test_a_variable_that_nobody_reads_is_pointed_out(rase: Rase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RASE_MAX_BATCH_SEQ", "5")
    assert "Did you mean RASE_MAX_BATCH_SEQS?" in rase("config", "show").err


def test_every_setting_can_be_said_in_one_way_only() -> None:
    keys = [key for name in SETTINGS if (key := key_of(name))]
    assert len(set(keys)) == len(keys) and len({option_of(name) for name in SETTINGS}) == len(SETTINGS)
    names_of_the_origin = """max_batch_tokens max_batch_seqs max_model_len chunked_prefill_size num_blocks
        enable_prefix_caching mem_fraction_static capture_sizes ignore_eos tensor_parallel_size
        tp_operation_timeout_secs tp_startup_timeout_secs"""
    assert set(names_of_the_origin.split()) <= set(keys)


def test_options_are_checked_at_once(rase: Rase) -> None:
    result = rase("serve", "--max-batch-seqs", "many")
    assert result.code == 2 and "--max-batch-seqs" in result.err and result.err.count("\n") == 1
    assert "RASE_MAX_BATCH_SEQS" in rase("serve", "--help").out
    with pytest.raises(InvalidSetting), env.command():
        env.choose("RASE_PORT", "x")
    with pytest.raises(RuntimeError):
        env.choose("RASE_PORT", "1")
