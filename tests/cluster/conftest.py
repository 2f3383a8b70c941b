"""A cluster without Ray: the server, two real replicas of each model in this process, and a wire between."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rase.cluster.config import Config
from rase.cluster.engines import ReplicaEngines
from rase.cluster.front import Front
from rase.cluster.prefixes import Affinity
from rase.cluster.replica import Replica
from rase.cluster.wire import Ask, Message
from rase.errors import ReplicaLost
from rase.registry import ModelRegistry
from rase.server.app import application
from tests.support import toys
from tests.support.http_server import RunningServer, running_app

WORDS = ("alpha ", "be", "ta ga", "mma", " delta")


class Wire:
    """``Replicas`` as Ray's handles are: what passes is copied, and the replica with the prefix gets it."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        self.affinity, self.seen = Affinity(), []  # type: ignore[var-annotated]
        self.loads = dict.fromkeys(self.replicas, 0)
        self.lose_after: int | None = None  # messages after which the replica dies

    async def answer(self, ask: Ask) -> AsyncGenerator[Message, None]:
        (name, *_), *_ = self.affinity.rank(ask.prefix, self.loads)
        self.affinity.learn(ask.prefix, name)
        self.seen.append(name)
        self.loads[name] += 1
        messages = self.replicas[name].answer(pickle.loads(pickle.dumps(ask)))
        try:
            count = 0
            async for message in messages:
                if count == self.lose_after:
                    raise ReplicaLost("the replica is gone")
                count += 1
                yield pickle.loads(pickle.dumps(message))
        finally:
            self.loads[name] -= 1
            await messages.aclose()  # type: ignore[attr-defined]

    async def tell(self, what: str, patience_s: float) -> list[tuple[str, Any]]:
        return [pickle.loads(pickle.dumps(await one.tell(what))) for one in self.replicas.values()]


class Cluster(RunningServer):
    """A running one; ``wires`` are by model."""

    wires: dict[str, Wire]


@contextlib.contextmanager
def clustered(folder: Path, models: Mapping[str, Path], **options: Any) -> Iterator[Cluster]:
    """Serve ``models`` by two replicas each; ``options`` are those of ``Config``."""
    registry = ModelRegistry.open(folder / "store")
    manifests = [registry.import_local(name, path).manifest for name, path in models.items()]
    threads = {"RASE_NUM_THREADS": "1", "RASE_STORE": str(folder / "store")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in threads.items():
            patch.setenv(name, value)
        patch.setattr("gc.freeze", lambda: None)
        config = Config(models=tuple(models), low=2, high=2, given=threads, **options)
        wires = {}
        for manifest in manifests:
            replicas = [Replica(config, manifest) for _ in range(2)]
            for number, replica in enumerate(replicas):
                replica.name = f"{manifest.id}-{number}"
            wires[manifest.id] = Wire(replicas)
        engines = ReplicaEngines(manifests, wires, limit=config.limit)
        app = application(engines, drain_s=config.drain_s)
        front = Front(app, open=False)
        front.state = SimpleNamespace(runner=engines)  # type: ignore[attr-defined]
        with running_app(front) as server:
            server.wires = wires  # type: ignore[attr-defined]
            yield server  # type: ignore[misc]
        for wire in wires.values():
            for replica in wire.replicas.values():
                replica._runner.close()
                replica._runner.join()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The models of the server's tests."""
    folder = tmp_path_factory.mktemp("cluster")
    words = toys.toy_bpe(words=WORDS)
    models = {
        "chain": toys.chain(folder, WORDS, tokenizer=words),
        "dice": toys.logits(folder, [0.0] * 64),
        "tiny": toys.tiny_llama(folder),
    }
    with clustered(folder, models) as running_server:
        yield running_server
