"""The servers that ``bench.serving`` drives: each started on a free port with two threads, and ended."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import builds

__all__ = ["ENGINES", "Endpoint", "endpoint"]

THREADS, CONTEXT = 2, 4096
START_S = 120.0


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers; ``options`` are fields of each request, for answers of a fixed length."""

    name: str
    url: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)


def _rase(file: Path, port: int, folder: Path) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    store = ["--store", str(folder / "store")]
    rase = [sys.executable, "-m", "rase"]
    subprocess.run([*rase, "model", "import", str(file), "--id", "model", *store, "-q"], check=True)
    limits = ["--num-threads", str(THREADS), "--max-model-len", str(CONTEXT), "--max-queue", "256"]
    limits += ["--chunked-prefill-size", "64"]  # short gaps in streams
    command = [*rase, "serve", "model", *store, "--port", str(port), *limits]
    return command, {}, {"ignore_eos": True}


def _llama_cpp(build: str) -> Any:
    def start(file: Path, port: int, folder: Path) -> tuple[list[str], dict[str, str], dict[str, Any]]:
        command = [
            str(builds.server_python()), "-m", "llama_cpp.server", "--model", str(file), "--port", str(port),
            "--host", "127.0.0.1", "--n_ctx", str(CONTEXT), "--n_threads", str(THREADS),
            "--n_threads_batch", str(THREADS), "--flash_attn", "True", "--verbose", "False",
            "--interrupt_requests", "False", "--model_alias", "model",
        ]  # fmt: skip
        ends = {str(id): -100 for id in _end_tokens(file)}
        return command, {"PYTHONPATH": str(builds.ensure(build))}, {"logit_bias": ends}

    return start


ENGINES: dict[str, Any] = {
    "rase": _rase, "llama-avx512": _llama_cpp("avx512"), "llama-amx": _llama_cpp("amx"),
}  # fmt: skip


def _end_tokens(file: Path) -> list[int]:
    """The ids that end an answer: a server that knows no ``ignore_eos`` is kept from choosing them."""
    from rase.gguf.reader import GgufFile
    from rase.text.tokenizer import LocalTokenizer

    with GgufFile.open(file) as opened:
        return sorted(LocalTokenizer.from_gguf(opened.metadata).end_ids)


@contextlib.contextmanager
def endpoint(name: str, file: Path | None, url: str | None, model: str) -> Iterator[Endpoint]:
    """The server ``name`` on ``file`` while the block runs, or the one that answers at ``url``."""
    if url is not None:
        yield Endpoint(name, url.rstrip("/"), model)
        return
    assert file is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        command, environment, options = ENGINES[name](file, port, Path(folder))
        with subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=log, stderr=log, cwd=folder
        ) as process:
            try:
                _wait(process, port, log)
                yield Endpoint(name, f"http://127.0.0.1:{port}/v1", "model", options)
            finally:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Any) -> None:
    """Until the server lists its models, and is ready where it says so."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        if all(_status(port, path) in (200, 404) for path in ("/v1/models", "/ready")):
            return
        time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"the server did not start: {log.read()[-2000:].decode(errors='replace')}")


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
