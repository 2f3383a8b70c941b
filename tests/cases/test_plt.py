"""Bug case PLT-3: a model that was used before a fork. The child answers, or says why not."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path

import pytest

import rase
from rase.errors import BackendError
from rase.store import open_store
from tests.support import toys
from tests.support.processes import in_child

GREEDY = {"temperature": 0.0, "max_tokens": 5}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    registry = open_store(tmp_path / "store")
    registry.import_local("endless", toys.chain(tmp_path, ["a", "b", "c"], then="a", name="endless"))
    return tmp_path / "store"


def answer(store: Path) -> str:
    """What a process says that looks the model up by itself."""
    return str(rase.load("endless", store).chat("Hi", **GREEDY))


def test_plt_3_a_child_loads_its_own_and_the_parent_goes_on(store: Path) -> None:
    model = rase.load("endless", store)
    assert model.chat("Hi", **GREEDY) == "abcab"
    assert in_child(lambda: answer(store)) == "abcab"
    assert model.chat("Hi", **GREEDY) == "abcab"


def test_plt_3_the_parents_model_says_why_it_cannot_answer_in_a_child(store: Path) -> None:
    model = rase.load("endless", store)
    model.chat("Hi", **GREEDY)

    def ask() -> str:
        try:
            return str(model.chat("Hi", **GREEDY))
        except BackendError as error:
            return f"refused: {error}"

    said = in_child(ask)
    assert said.startswith("refused: ") and "fork" in said and "spawn" in said
    assert model.chat("Hi", **GREEDY) == "abcab"


def test_plt_3_a_fork_during_generations_of_other_threads(store: Path) -> None:
    model = rase.load("endless", store)
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(model.chat("Hi", temperature=0.0, max_tokens=400)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.01)
        assert in_child(lambda: answer(store)) == "abcab"
    for thread in threads:
        thread.join(60)
    assert answers == [("abc" * 134)[:400]] * 3


def test_plt_3_spawned_processes_answer(store: Path) -> None:
    model = rase.load("endless", store)
    model.chat("Hi", **GREEDY)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(answer, (store,)).get(60) == "abcab"
