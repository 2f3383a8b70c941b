"""Interrupts at random moments of some work."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence

__all__ = ["Interrupt", "interrupted"]


class Interrupt(BaseException):
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
            except Interrupt:
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
        handle, kind = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(handle, kind)
        wait_for(handled, number)
    stop.set()
    thread.join(10)
    if errors:
        raise errors[0]
    assert not thread.is_alive(), "the thread hangs"
