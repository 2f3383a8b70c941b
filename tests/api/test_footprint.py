"""Memory: the estimate against the measured peak of a real model, and nothing kept over many loads."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import rase
from tests.support import toys

MEASURE = """
import gc, sys
from pathlib import Path
import numpy, psutil, tokenizers
import rase.loading
from rase import models
from rase.device import RuntimeDevice
from rase.engine.decoder import ProgramDecoder
from rase.engine.scheduler import Scheduler
from rase.gguf.stream import buffer_bytes

needed = []
plan = rase.loading.plan_memory
def measured(backend, graph, file, options):
    estimate = backend.estimate(graph, file.tensors, options)
    reading = buffer_bytes(file, estimate.grain, estimate.threads)
    needed.append(estimate.weights + estimate.scratch + reading + estimate.page)
    return plan(backend, graph, file, options)
rase.loading.plan_memory = measured
before = psutil.Process().memory_info().rss
loaded = rase.loading.load_program(sys.argv[1], RuntimeDevice.select("cpu"))
ProgramDecoder(Scheduler(loaded.program, loaded.pool)).prefill([1, 2, 3])
with open("/proc/self/status") as status:  # ru_maxrss begins with the peak of the parent
    peak = 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(needed[0], peak - before)
"""


@pytest.mark.real
def test_the_estimate_is_the_peak_of_loading(smollm2: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(smollm2)], capture_output=True, text=True, timeout=100, check=True
    )
    estimate, peak = map(int, done.stdout.split())
    assert abs(peak / estimate - 1) < 0.15, f"estimated {estimate:,} bytes, measured {peak:,}"


def test_loading_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    path = toys.tiny_llama(tmp_path)
    process = psutil.Process()

    def rounds(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            with rase.load(path) as model:
                model.chat("Hi", max_tokens=4)
        gc.collect()
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    states = [rounds(5)]  # whatever is made once is made now
    for _ in range(4):
        states.append(rounds(10))
    # Threads of tests before may end or begin meanwhile; what each load left behind would be ten a round.
    for what, index in (("files", 1), ("threads", 2)):
        assert states[-1][index] - states[0][index] < 10, f"{what}: {[state[index] for state in states]}"
    growth = [(after[0] - before[0]) / 2**20 for before, after in itertools.pairwise(states)]
    # A leak grows in every window; the allocator's own steps, in a process that ran other tests, do not.
    assert min(growth) < 1, f"MiB more after each 10 rounds: {growth}"
