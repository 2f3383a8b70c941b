"""The sampler again, in plain Python over sorted lists: slow, obvious, and without the kernel's code.

It shares only the exponential and the random number with the kernel, each of which has tests of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rase._kernels import mathfn
from rase._kernels.sampler import uniform
from rase.engine.config import GenerationConfig


class TooClose(Exception):
    """A decision hangs on the last bits of a sum: the order of additions may decide either way."""


def adjusted(
    logits: Sequence[float], config: GenerationConfig, prompt: Sequence[int], answer: Sequence[int]
) -> list[float]:
    """Logits after penalties and bias, as float32 values."""
    row = [float(np.float32(x)) for x in logits]
    times = Counter(answer)
    for id in sorted({*prompt, *answer}):
        if id >= len(row):
            continue
        x = row[id] / config.repetition_penalty if row[id] > 0 else row[id] * config.repetition_penalty
        if times[id]:
            x -= config.presence_penalty + config.frequency_penalty * times[id]
        row[id] = float(np.float32(x))
    for id, bias in config.logit_bias.items():
        row[id] = float(np.float32(row[id] + bias))
    return row


def kept(row: Sequence[float], config: GenerationConfig) -> list[tuple[int, float]]:
    """(id, weight) of the ids that survive the filters, best first; weights are relative to the best."""
    order = sorted(range(len(row)), key=lambda id: (-row[id], id))
    if config.greedy:
        return [(order[0], 1.0)]
    if config.top_k:
        order = order[: config.top_k]
    scale = 1.0 / float(np.float32(config.temperature))
    powers = np.array([(row[id] - row[order[0]]) * scale for id in order])
    weights = np.empty(len(order))
    mathfn.exp(powers, weights)
    pairs = list(zip(order, weights.tolist(), strict=True))
    if config.top_p < 1.0:
        goal, running, count = config.top_p * sum(weights), 0.0, 0
        while count == 0 or (count < len(pairs) and running < goal):
            running += pairs[count][1]
            count += 1
            if abs(running - goal) < 1e-12 * goal and set(weights) != {1.0}:  # sums of ones are exact
                raise TooClose
        pairs = pairs[:count]
    return [(id, weight) for id, weight in pairs if weight >= config.min_p and weight > 0]


def choose(
    logits: Sequence[float],
    config: GenerationConfig,
    position: int = 0,
    choice: int = 0,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
) -> int:
    """The id that the sampler must choose. Raises ``TooClose`` where rounding decides."""
    row = adjusted(logits, config, prompt, answer)
    pairs = kept(row, config)
    filtered = config.top_p < 1.0 or (config.top_k or len(row)) < len(row)
    if not filtered and not config.greedy:
        pairs.sort()  # without top_k and top_p the draw walks over the ids in ascending order
    target = uniform(config.seed, choice, position) * sum(weight for _, weight in pairs)
    running = 0.0
    for id, weight in pairs:
        running += weight
        if len(pairs) > 1 and abs(running - target) < 1e-12 * running:
            raise TooClose
        if target < running:
            return id
    return pairs[-1][0]
