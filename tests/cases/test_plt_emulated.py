"""PLT-1: the package on emulated processors: import, whole answers, and what dispatch chooses there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import toys

PYTHON = os.environ.get("RASE_PROOF_PYTHON", sys.executable)  # of an environment with the wheel
PROGRAM = """
import json, sys
import rase
from rase.backends.cpu import select_variant

model = rase.load(sys.argv[1])
answer = model.chat("Hello", temperature=0, max_tokens=24)
print(json.dumps([select_variant().name, str(answer), rase.__file__]))
"""
PROCESSORS = {"Nehalem": "scalar", "Haswell": "avx2"}  # x86-64-v2, NumPy's own floor, and v3

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("qemu-x86_64-static"),
        reason="needs the emulator of Debian: apt-get install qemu-user-static",
    ),
]


def ask(path: Path, cpu: str | None) -> list[str]:
    """What the program prints here (None), or on an emulated processor: variant, answer, place of rase."""
    emulator = [] if cpu is None else ["qemu-x86_64-static", "-cpu", cpu]
    environment = {**os.environ, "RASE_NUMERICS": "portable", "RASE_NUM_THREADS": "1"}
    done = subprocess.run(
        [*emulator, PYTHON, "-c", PROGRAM, str(path)],
        capture_output=True, text=True, env=environment, timeout=500, cwd=path.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("cpu", "variant"), PROCESSORS.items())
def test_plt_1_whole_answers_on_older_processors(cpu: str, variant: str, tmp_path: Path) -> None:
    path = toys.tiny_llama(tmp_path)
    here = ask(path, None)
    there = ask(path, cpu)
    assert there[0] == variant and there[1] == here[1] and len(here[1]) > 10
    assert sys.executable == PYTHON or there[2].startswith(str(Path(PYTHON).parents[1])), "not the wheel"
