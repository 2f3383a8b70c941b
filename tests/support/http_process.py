"""``serve`` as a process of its own: for signals, ports and what it prints."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.http_server import wait_until

__all__ = ["ServerProcess", "serving"]

# The brake makes every step take 10 ms, so that a stream lasts as long as a test needs.
_CODE = """
import sys, time
from rase.server import runner
from rase.server.serve import serve

real = runner.start
def start(session, prepared, on_piece, cancelled, on_done, **options):
    return real(session, prepared, on_piece, lambda: time.sleep({step}), on_done, **options)
runner.start = start
sys.exit(serve({store!r}, port={port}, drain_s={drain_s}))
"""


class ServerProcess:
    """A running server; ``stderr`` grows as it writes. ``port`` is 0 when it ended before it was ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.stderr: list[str] = []
        self.url, self.port = "", 0
        self._announced = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._announced.wait(60)
        if self.port:
            wait_until(lambda: self.healthy() or process.poll() is not None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, ""):
            self.stderr.append(line)
            found = re.match(r"rase serves \d+ models? at (http://\S+:(\d+))/v1", line)
            if found:
                self.url, self.port = found[1], int(found[2])
            elif self.url:
                self._announced.set()  # with the line after it, the one to try
        self._announced.set()

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
    store: Path,
    *,
    drain_s: float = 1.0,
    port: int = 0,
    step: float = 0.01,
    command: Sequence[str] | None = None,
) -> Iterator[ServerProcess]:
    """Serve ``store`` until the block ends; the process never outlives it.

    ``command`` are arguments of the interpreter instead of a script that calls ``serve`` with the brake on.
    """
    code = _CODE.format(store=str(store), port=port, drain_s=drain_s, step=step)
    arguments = ["-c", code] if command is None else list(command)
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield ServerProcess(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
