"""Work in another process: a forked child that must answer in time."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

__all__ = ["in_child"]


def in_child(work: Callable[[], str]) -> str:
    """Run ``work`` in a forked child and return what it says; fails after ten seconds."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.write(write, work().encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], 10)
        assert ready, "the child hangs"
        return os.read(read, 65536).decode()
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
