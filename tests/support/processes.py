"""Work that is disturbed: a forked child that must answer in time, interrupts at random or every moment."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from rase.testing.interrupts import Interrupt

__all__ = ["in_child", "interrupted_at"]


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


def interrupted_at(moment: int, file: str, work: Callable[[], object]) -> bool:
    """Call ``work`` and raise an interrupt at bytecode number ``moment`` that runs in ``file``.

    Returns False when ``work`` ended before. The exception and its frames are gone when this returns.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in (file, contextlib.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == moment + 1:
                raise Interrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        work()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return count > moment
