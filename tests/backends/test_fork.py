"""Work after a fork: the surviving thread hands it to a thread of the child; others do it themselves."""

from __future__ import annotations

import os
import threading

import pytest

from rase.backends import _fork
from tests.support.processes import in_child

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads


def test_without_a_fork_work_stays_in_its_thread() -> None:
    assert _fork.call(threading.get_ident) == threading.get_ident()
    assert _fork.call(divmod, 7, 2) == (3, 1)


def test_in_a_child_it_runs_in_one_other_thread() -> None:
    def child() -> str:
        first, second = _fork.call(threading.get_ident), _fork.call(threading.get_ident)
        return f"{first == threading.get_ident()} {first == second}"

    assert in_child(child) == "False True"


def test_in_a_child_errors_pass_through_and_new_threads_work_themselves() -> None:
    def child() -> str:
        with pytest.raises(ZeroDivisionError):
            _fork.call(divmod, 1, 0)
        found: list[bool] = []
        thread = threading.Thread(
            target=lambda: found.append(_fork.call(threading.get_ident) == threading.get_ident())
        )
        thread.start()
        thread.join()
        return str(found)

    assert in_child(child) == "[True]"


def test_a_child_of_a_child() -> None:
    def child() -> str:
        _fork.call(os.getpid)
        return in_child(lambda: str(_fork.call(os.getpid) == os.getpid()))

    assert in_child(child) == "True"
