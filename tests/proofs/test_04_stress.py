"""Proof 7 of list 04: a minute of threads that do everything at once; every answer right, memory flat."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import rase
from rase.errors import BackendError, EngineError
from rase.store import open_store
from tests.support import toys

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

THREADS, SECONDS = 32, float(os.environ.get("RASE_STRESS_SECONDS", "60"))
CHAINS = {"x": ["a", "b", "c"], "y": ["d", "e", "f", "g"], "z": ["h", "i"]}


class Crowd:
    """What the threads share: the store, when to end, what went wrong and how often each thing was done."""

    def __init__(self, store: Path) -> None:
        self.store, self.end = store, time.monotonic() + SECONDS
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()

    def work(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end and not self.wrong:
            action = rng.choice(
                (self.chat, self.chat, self.stream, self.leave, self.unload, self.verify, self.list)
            )
            try:
                action(rng, rng.choice(list(CHAINS)))
                self.done[action.__name__] += 1
            except BackendError as error:
                if "closed" not in str(error):  # somebody unloaded it between load and use
                    self.wrong.append(f"{action.__name__}: {error}")
            except (EngineError, AssertionError) as error:
                self.wrong.append(f"{action.__name__}: {type(error).__name__} {error}")

    def expected(self, name: str, count: int) -> str:
        return ("".join(CHAINS[name]) * count)[:count]

    def chat(self, rng: random.Random, name: str) -> None:
        count = rng.randint(1, 60)
        said = rase.load(name, self.store).chat("Hi", temperature=0.0, max_tokens=count)
        assert said == self.expected(name, count)

    def stream(self, rng: random.Random, name: str) -> None:
        count = rng.randint(1, 60)
        said = "".join(rase.load(name, self.store).stream("Hi", temperature=0.0, max_tokens=count))
        assert said == self.expected(name, count)

    def leave(self, rng: random.Random, name: str) -> None:
        stream = rase.load(name, self.store).stream("Hi", temperature=0.0, max_tokens=3000)
        said = "".join(next(stream) for _ in range(rng.randint(1, 20)))
        assert said == self.expected(name, len(said))
        if rng.random() < 0.5:
            stream.close()

    def unload(self, rng: random.Random, name: str) -> None:
        if rng.random() < 0.1:
            rase.unload_models()

    def verify(self, rng: random.Random, name: str) -> None:
        rase.verify_model(self.store, name)

    def list(self, rng: random.Random, name: str) -> None:
        assert len(rase.list_models(self.store)) == len(CHAINS)


def test_everything_at_once(tmp_path: Path, figure) -> None:
    registry = open_store(tmp_path / "store")
    for name, says in CHAINS.items():
        registry.import_local(name, toys.chain(tmp_path, says, then=says[0], name=name))
    crowd = Crowd(tmp_path / "store")
    threads = [threading.Thread(target=crowd.work, args=(seed,), daemon=True) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    process, sizes = psutil.Process(), []
    while time.monotonic() < crowd.end and not crowd.wrong:
        time.sleep(SECONDS / 20)
        sizes.append(process.memory_info().rss)
    for thread in threads:
        thread.join(60)
    assert not [thread for thread in threads if thread.is_alive()], "deadlock"
    assert not crowd.wrong, crowd.wrong[:5]
    early, late = max(sizes[4:12]), max(sizes[12:])
    figure(
        f"{sum(crowd.done.values())} actions {dict(crowd.done)}; memory {early >> 20} then {late >> 20} MiB"
    )
    assert late < 1.15 * early + (32 << 20)
