"""``Cluster``: ``rase cluster run`` in a process, seen from outside."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable

import psutil

from tests.support.http_server import RunningServer

__all__ = ["PATIENCE_S", "Cluster", "until"]

PATIENCE_S = 800.0  # on a machine that is busy otherwise


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> float:
    """Wait for ``condition()``, asking it a few times a second; returns the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not true within {seconds} s"
        time.sleep(0.2)
    return time.monotonic() - start


class Cluster(RunningServer):
    """The address of a cluster, what its process says, and what it tells of its replicas."""

    timeout = 300.0

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(None, 0, None, [])  # type: ignore[arg-type]
        self.process, self._lines = process, []  # type: ignore[var-annotated]
        threading.Thread(target=self._read, daemon=True).start()

        def announced() -> bool:
            return process.poll() is not None or any("rase serves" in line for line in self._lines)

        until(announced)
        found = re.search(r"rase serves \d+ models? at (http://127.0.0.1:(\d+))/v1", "\n".join(self._lines))
        assert found, "\n".join(self._lines[-40:])
        self.url, self.port = found[1], int(found[2])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, ""):
            self._lines.append(line.rstrip())

    @property
    def log(self) -> list[str]:
        """All lines so far: they come through Ray, a moment later."""
        count = -1
        while count != len(self._lines):
            count = len(self._lines)
            time.sleep(1.0)
        return self._lines

    @log.setter
    def log(self, lines: list[str]) -> None:
        pass

    def samples(self, name: str, model: str) -> dict[str, float]:
        """A metric of each replica of ``model``."""
        pattern = re.compile(rf'^rase_{name}{{model="{model}",replica="(\w+)"}} (\S+)$', re.M)
        found: list[tuple[str, str]] = []
        until(lambda: found.extend(pattern.findall(self.get("/metrics").body.decode())) or found)
        return {one: float(value) for one, value in found}

    def jobs(self, model: str) -> int:
        return int(sum(self.samples("requests_running", model).values()))

    def replicas(self, model: str) -> set[str]:
        return {one["replica"] for one in self.get("/v1/ps").json["data"] if one["id"] == model}

    def processes(self, model: str) -> list[psutil.Process]:
        """Those of the replicas, by the names that Ray gives them."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [one] if f"ServeReplica:rase:{model}" in " ".join(one.cmdline()) else []
        return found
