"""The session lock: order of arrival, re-entry, giving up, and never staying held by accident."""

from __future__ import annotations

import threading
import time

import pytest

from rase.errors import Cancelled, SessionBusy
from rase.session_lock import FifoLock
from tests.support.processes import interrupted


def wait_until(condition, what: str, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.001)


def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    lock, order, threads = FifoLock(), [], []

    def use(number: int) -> None:
        with lock.hold():
            order.append(number)

    with lock.hold():
        for number in range(8):
            threads.append(threading.Thread(target=use, args=(number,)))
            threads[-1].start()
            wait_until(lambda n=number: lock.queued == n + 1, f"waiter {number} is queued")
    for thread in threads:
        thread.join(5)
    assert order == list(range(8))
    assert not lock.locked


def test_one_thread_at_a_time() -> None:
    lock, inside, most = FifoLock(), [0], [0]

    def use() -> None:
        for _ in range(50):
            with lock.hold():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most[0] == 1
    assert not lock.locked and lock.queued == 0


def test_the_thread_that_holds_it_cannot_take_it_again() -> None:
    lock = FifoLock("model 'm'")
    with lock.hold():
        with pytest.raises(SessionBusy, match="model 'm' is already in use"), lock.hold():
            pass
        assert lock.locked, "a refused re-entry must not release the outer hold"
    with lock.hold():
        pass


def test_a_cancelled_waiter_leaves_and_the_others_keep_their_order() -> None:
    lock, order, give_up, left = FifoLock(), [], threading.Event(), []

    def leave() -> None:
        try:
            with lock.hold(give_up.is_set):
                order.append("cancelled waiter got in")
        except Cancelled:
            left.append(time.monotonic())

    def use() -> None:
        with lock.hold():
            order.append("second")

    with lock.hold():
        first = threading.Thread(target=leave)
        first.start()
        wait_until(lambda: lock.queued == 1, "the first waiter is queued")
        second = threading.Thread(target=use)
        second.start()
        wait_until(lambda: lock.queued == 2, "the second waiter is queued")
        start = time.monotonic()
        give_up.set()
        first.join(5)
        assert lock.queued == 1
    second.join(5)
    assert order == ["second"]
    assert left[0] - start < 0.2


def test_an_exception_inside_releases_it() -> None:
    lock = FifoLock()
    with pytest.raises(ZeroDivisionError), lock.hold():
        raise ZeroDivisionError
    assert not lock.locked


def test_a_hold_that_dies_without_exit_releases_it() -> None:
    lock = FifoLock()
    hold = lock.hold()
    hold.__enter__()
    assert lock.locked
    del hold
    assert not lock.locked


def test_interrupts_at_random_moments_never_leave_it_held() -> None:
    lock, rounds = FifoLock(), [0]

    def use() -> None:
        with lock.hold():  # SessionBusy here would mean that an interrupted hold stayed
            rounds[0] += 1

    interrupted(use, [0.0005] * 200)
    assert rounds[0] > 100
    with lock.hold():
        pass
