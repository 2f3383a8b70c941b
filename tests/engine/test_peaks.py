"""Peaks: what a program finds of its logits for the sampler, which changes nothing but the time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rase._kernels.kernels import Variant, variants

from rase._kernels.sampler import peaks
from rase.engine.config import GenerationConfig
from rase.engine.sampler import Sampler
from rase.errors import InvalidLogits

INF, NAN = math.inf, math.nan
GREEDY = GenerationConfig(temperature=0.0)


def peaks_of(row, variant="scalar"):
    found = np.empty(len(row) // 256 * 16, np.float32)
    peaks(Variant(variant), row, found)
    return found


@pytest.mark.parametrize("variant", [name for name, missing in variants() if missing is None])
@pytest.mark.parametrize("n", [0, 255, 256, 300, 4096])
def test_peaks_are_the_largest_of_every_16th_and_tell_of_faults(variant, n):
    row = np.random.default_rng(n).normal(size=n).astype(np.float32)
    lanes = row[: n // 256 * 256].reshape(-1, 16, 16)
    np.testing.assert_array_equal(peaks_of(row, variant), lanes.max(axis=1).ravel())
    for bad in (NAN, INF, -INF):
        for at in {0, n // 2, n - 1} & set(range(n // 256 * 256)):
            damaged = row.copy()
            damaged[at] = bad
            found = peaks_of(damaged, variant)
            assert np.flatnonzero(np.isnan(found)).tolist() == [at // 256 * 16 + at % 16], (bad, at)


@pytest.mark.parametrize("n", [100, 256, 700, 2048])
@pytest.mark.parametrize("config", [GREEDY, GenerationConfig(temperature=0.8, top_k=9, logprobs=3)])
def test_peaks_change_nothing(n, config):
    rng, sampler = np.random.default_rng(n), Sampler(config, n)
    for position in range(20):
        row = rng.integers(-40, 40, n + 30).astype(np.float32) / 4  # ties; and padding rows
        assert sampler.sample(row, position, peaks=peaks_of(row)) == sampler.sample(row, position)
    for at in (0, n - 1):
        row = np.zeros(n + 30, np.float32)
        row[at] = INF
        with pytest.raises(InvalidLogits, match="infinity"):
            sampler.sample(row, 0, peaks=peaks_of(row))
    row = np.zeros(n + 30, np.float32)
    row[n:] = NAN
    assert sampler.sample(row, 0, peaks=peaks_of(row)) == sampler.sample(np.zeros(n, np.float32), 0)


def test_peaks_of_another_row_are_an_error():
    row, other = np.zeros(512, np.float32), np.zeros(512, np.float32)
    other[3] = 1
    with pytest.raises(ValueError, match="peaks of another row"):
        Sampler(GREEDY, 512).sample(row, 0, peaks=peaks_of(other))


def test_too_few_peaks_are_refused():
    with pytest.raises(ValueError, match="16 peaks for 512"):
        Sampler(GREEDY, 512).sample(np.zeros(512), 0, peaks=np.zeros(16, np.float32))
