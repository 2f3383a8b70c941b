"""Several processes share one store: every read is valid, no update is lost, no lock stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from rase.registry import ModelRegistry
from tests.support.stores import toy_gguf, toy_tokenizer

WORKER = """
import random, sys
from pathlib import Path
from rase.errors import ModelNotFound
from rase.registry import ModelRegistry
folder, number, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(number)
for step in range(rounds):
    registry = ModelRegistry.open(folder / "store", lock_timeout=30)
    registry.import_local(f"own-{number}-{step}", folder / "0.gguf")
    action = chance.randrange(4)
    try:
        if action == 0:
            registry.import_local("shared", folder / f"{chance.randrange(2)}.gguf")
        elif action == 1:
            registry.attach_tokenizer("shared", folder / "tokenizer.json")
        elif action == 2:
            registry.remove("shared")
        else:
            registry.verify("shared")
    except ModelNotFound:
        pass
    good, broken = registry.scan()
    assert not broken, broken
    assert {f"own-{number}-{step}" for step in range(step + 1)} <= {manifest.id for manifest in good}
    print(step, flush=True)
"""


def start(folder: Path, number: int, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(folder), str(number), str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_many_processes(tmp_path: Path) -> None:
    toy_gguf(tmp_path / "0.gguf", 0)
    toy_gguf(tmp_path / "1.gguf", 1)
    toy_tokenizer(tmp_path / "tokenizer.json")
    workers, rounds = 4, 8
    processes = [start(tmp_path, number, rounds) for number in range(workers)]
    victim = start(tmp_path, 99, 10_000)
    assert victim.stdout is not None and victim.stdout.readline() == "0\n"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    for process in processes:
        _, error = process.communicate(timeout=100)
        assert process.returncode == 0, error
    registry = ModelRegistry.open(tmp_path / "store", lock_timeout=1)
    ids = {manifest.id for manifest in registry.list()}
    assert {f"own-{number}-{step}" for number in range(workers) for step in range(rounds)} <= ids
    for id in ids:
        registry.verify(id)
    registry.import_local("last", tmp_path / "0.gguf")
    assert [name for name in (registry.root / "manifests").iterdir() if name.name.startswith(".")] == []
