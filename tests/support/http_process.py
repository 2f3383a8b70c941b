"""``serve`` as a process of its own: for signals, ports and what it prints."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.http_server import wait_until

__all__ = ["ServerProcess", "serving"]

# The brake makes every token take 10 ms, so that a stream lasts as long as a test needs.
_CODE = """
import sys, time
from rase.backends import names
from rase.device import RuntimeDevice
from rase.server import runner
from rase.server.serve import serve

real = runner.run
def run(session, prepared, on_piece, cancelled):
    return real(session, prepared, on_piece, lambda: (time.sleep({step}), cancelled())[1])
runner.run = run
device = RuntimeDevice("cpu", "cpu" if "cpu" in names() else "reference")
sys.exit(serve({store!r}, port={port}, drain_s={drain_s}, device=device, on_ready=lambda url: print(url,
flush=True)))
"""


class ServerProcess:
    """A running ``serve``; ``stderr`` grows as it writes."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rsplit(":", 1)[1]) if url else 0
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.stderr.extend(iter(self.process.stderr.readline, ""))

    def ended(self, seconds: float = 20) -> int:
        """The exit status; fails when the process still runs after ``seconds``."""
        wait_until(lambda: self.process.poll() is not None, seconds)
        self._reader.join(5)
        return int(self.process.returncode)

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def serving(
    store: Path, *, drain_s: float = 1.0, port: int = 0, step: float = 0.01
) -> Iterator[ServerProcess]:
    """Serve ``store`` until the block ends; the process never outlives it."""
    code = _CODE.format(store=str(store), port=port, drain_s=drain_s, step=step)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        server = ServerProcess(process, process.stdout.readline().strip())
        if server.url:
            wait_until(server.healthy)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
