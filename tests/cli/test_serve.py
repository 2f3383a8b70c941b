"""``rase serve``: listens where it says, lists the store's models, and ends with Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from rase.cli.cluster import run
from rase.cli.options import option_of
from rase.cli.serve import serve
from rase.settings import SETTINGS
from tests.cli.conftest import Rase
from tests.cli.test_run import Reader

pytest.importorskip("uvicorn")


def test_serve(rase: Rase, hello: Path, command: list[str]) -> None:
    rase("model", "import", hello)
    with subprocess.Popen(
        [*command, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        reader = Reader(process.stderr.fileno())
        found = re.search(r"http://127\.0\.0\.1:\d+", reader.until("/v1"))
        assert found is not None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(found[0] + "/v1/models", timeout=30) as reply:
            assert [model["id"] for model in json.load(reply)["data"]] == ["hello"]
        busy = found[0].rsplit(":", 1)[1]
        result = rase("serve", "--port", busy)
        assert result.code == 2 and "in use" in result.err and result.err.count("\n") == 1
        process.send_signal(signal.SIGINT)
        out = process.stdout.read()
        process.wait(30)
    assert process.returncode == 0 and out == b""


def test_models_are_loaded_first_and_ps_lists_them(rase: Rase, hello: Path, command: list[str]) -> None:
    rase("model", "import", hello)
    rase("model", "import", hello, "--id", "twin")
    arguments = [
        "serve", "hello", "--port", "0", "--keep-alive", "1h", "--memory-budget", "1GB", "--draft", "twin",
        "--prefix-store", str(hello.parent / "kept"), "--prefix-store-size", "1MB",
    ]  # fmt: skip
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", Reader(process.stderr.fileno()).until("/v1"))
        assert found is not None
        listed = rase("ps", "--url", found[0])
        (line,) = [line for line in listed.out.splitlines() if line.startswith("hello ")]
        assert listed.code == 0 and line.endswith("never"), "what was named is pinned"
        models = {
            model["id"]: model for model in json.loads(rase("ps", "--json", "--url", found[0] + "/v1").out)
        }
        assert models["hello"]["pinned"] and models["hello"]["active"] == 0
        assert models["twin"]["expires_at"] is None, "as long as a model that it guesses for"
        assert (hello.parent / "kept").is_dir()
        process.send_signal(signal.SIGINT)
        process.wait(30)
    gone = rase("ps", "--url", found[0])
    assert gone.code == 1 and "rase serve" in gone.err and gone.err.count("\n") == 1


def test_a_model_that_cannot_be_loaded_ends_the_start(rase: Rase, hello: Path) -> None:
    rase("model", "import", hello)
    assert rase("serve", "nothing", "--port", "0").code == 3
    assert rase("serve", "hello", "--port", "0", "--memory-budget", "1kB").code == 5
    assert rase("serve", "--port", "0", "--keep-alive", "soon").code == 2


def test_every_setting_is_an_option() -> None:
    """But for what comes as an argument or is a secret, for replicas, and where nothing can be chosen."""
    options = {name for parameter in serve.params for name in parameter.opts}
    elsewhere = {"RASE_MODELS", "RASE_API_KEY", "RASE_PROFILE", "CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"}
    refused = {"RASE_MEM_FRACTION_STATIC", "RASE_MTP_NUM_DRAFT_TOKENS"}
    replicas = {name for parameter in run.params for name in parameter.opts} - options
    for name in SETTINGS.keys() - elsewhere - refused:
        assert option_of(name) in options | replicas, name
