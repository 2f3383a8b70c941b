"""Work that is disturbed: a forked child that must answer in time, interrupts at random or every moment."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

__all__ = ["in_child", "interrupted", "interrupted_at"]


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


class _Interrupt(BaseException):
    """What arrives in the thread, as KeyboardInterrupt arrives in the main thread."""


def interrupted(work: Callable[[], object], delays: Sequence[float]) -> None:
    """Call ``work`` in a loop in a thread that is interrupted after each of ``delays`` seconds.

    An interrupt is sent only while the loop is inside, so each one strikes ``work`` and not this function.
    What else ``work`` raises ends the loop and is raised here.
    """
    stop, errors = threading.Event(), []
    entered, handled = [0], [0]

    def loop() -> None:
        while not stop.is_set():
            try:
                entered[0] += 1
                while not stop.is_set():
                    work()
            except _Interrupt:
                handled[0] += 1
            except Exception as error:
                errors.append(error)
                return

    def wait_for(counter: list[int], value: int) -> None:
        while counter[0] < value and thread.is_alive():
            time.sleep(0.0001)

    thread = threading.Thread(target=loop)
    thread.start()
    for number, delay in enumerate(delays, 1):
        wait_for(entered, number)
        time.sleep(delay)
        handle, kind = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Interrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(handle, kind)
        wait_for(handled, number)
    stop.set()
    thread.join(10)
    if errors:
        raise errors[0]
    assert not thread.is_alive(), "the thread hangs"


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
                raise _Interrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        work()
    except _Interrupt:
        return True
    finally:
        sys.settrace(before)
    return count > moment
