"""The container: every step of the Dockerfile in bare Debian roots, and the server that comes of it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from platformdirs import user_cache_path

from tests.container.dockerfile import ROOT, Image, build, missing_tools

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3000)]

KEY = "a-key-for-the-container"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    if (reason := missing_tools()) is not None:
        pytest.skip(reason)
    cache = Path(os.environ.get("RASE_PROOF_CACHE") or user_cache_path("rase-proofs"))
    cache.mkdir(parents=True, exist_ok=True)
    return build(ROOT / "Dockerfile", tmp_path_factory.mktemp("container"), cache)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def ask(port: int, path: str, body: object = None, key: str | None = KEY) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def test_the_image_serves(image: Image, smollm2: Path, figure) -> None:
    assert image.user == "rase" and not (image.root / "usr" / "bin" / "gcc").exists()
    store = image.root / "models"
    shutil.copy(smollm2, store / "smollm2.gguf")
    image.run([*image.entrypoint, "model", "import", "/models/smollm2.gguf", "--id", "smollm2", "-q"])
    port = free_port()
    image.environment |= {"RASE_PORT": str(port)}
    refused = image.start([*image.entrypoint, *image.command], stderr=subprocess.PIPE, text=True)
    assert "API keys" in refused.communicate(timeout=60)[1] and refused.returncode == 2
    image.environment |= {"RASE_API_KEY": KEY, "RASE_MODELS": "smollm2"}
    server = image.start([*image.entrypoint, *image.command], stderr=subprocess.PIPE, text=True)
    try:
        start = time.monotonic()
        while ask(port, "/ready", key=None)[0] != 200:
            assert time.monotonic() - start < 120 and server.poll() is None
            time.sleep(0.2)
        figure(f"ready after {time.monotonic() - start:.1f} s")
        image.run(image.health)
        image.run([*image.health, "--ready"])
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
        assert ask(port, "/v1/chat/completions", {**body, "temperature": 0}, key=None)[0] == 401
        status, answer = ask(port, "/v1/chat/completions", {**body, "temperature": 0, "max_tokens": 16})
        assert status == 200 and "Paris" in json.loads(answer)["choices"][0]["message"]["content"]
        (rase,) = [
            child
            for child in psutil.Process(server.pid).children(recursive=True)
            if "serve" in child.cmdline() and child.name() != "bash"
        ]
        assert rase.uids().real == 10001
        rase.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    finally:
        server.kill()
    log = server.stderr.read() if server.stderr else ""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert any(line.get("model") == "smollm2" and line["status"] == 200 for line in lines) and KEY not in log
