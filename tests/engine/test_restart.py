"""A device that is lost in a step: every request completes, and no page of the old class is read again."""

from __future__ import annotations

import numpy as np
import pytest

from rase.errors import DeviceLost
from tests.engine.test_batching import Bench
from tests.support.recorder import Recorder


class Losing(Recorder):
    """Loses its device in step ``lose_in``: what pages held is not what the program reads from now on."""

    lose_in = 0

    def run(self, batch):
        rows = super().run(batch)
        if len(self.batches) == self.lose_in:
            for store in self.store:
                store[:] = -1000
            self.numerics_class = "without the device"
            raise DeviceLost("the GPU failed")
        return rows


@pytest.mark.parametrize("step", range(1, 14))
@pytest.mark.parametrize("windows", [(None,), (None, 40)])
def test_whoever_runs_when_a_device_is_lost_gets_the_answer(step, windows):
    """In prompts, between them, while answers grow, with choices that share pages, and a kept prefix."""
    bench = Bench(windows=windows, max_batch_tokens=40)
    program = bench.program
    program.__class__, program.lose_in = Losing, step
    prompt = np.random.default_rng(1).integers(0, 50, 70).tolist()
    bench.add(prompt, n=2, temperature=1.0, seed=4, max_tokens=12)
    bench.add([1, 2, 3], max_tokens=20)
    for _ in range(3):
        bench.batching.step()
    bench.add([*prompt[:64], 5], max_tokens=6)
    bench.finish()
    assert program.numerics_class == "without the device" or len(program.batches) < step
    bench.check()
    bench.add(prompt, max_tokens=4)  # and what the tree keeps now is of the new class
    bench.finish()
    bench.check()
