"""Cases SMP-1, 3, 5, 7, 9 of public bug reports, at the engine: sampling parameters and determinism."""

from __future__ import annotations

import numpy as np
import pytest

from rase.engine.generation import GenerationConfig, generate
from rase.engine.request import Request
from rase.errors import InvalidGenerationConfig
from rase.session import ModelSession
from tests.support import toys
from tests.support.decoders import FixedLogits

CHI_SQUARE_1_PERCENT = {1: 6.63, 2: 9.21, 63: 92.01}  # by degrees of freedom


def tokens(logits, n: int = 1, **fields) -> list[int]:
    return generate(FixedLogits(logits), [0], GenerationConfig(max_tokens=n, **fields)).tokens


def chi_square(found: list[int], kinds: int) -> float:
    counts = np.bincount(found, minlength=kinds)
    return float(((counts - len(found) / kinds) ** 2 / (len(found) / kinds)).sum())


FLAT = [0.0] * 64
SEEDS = [0, 1, 2147483648, 4294967295, 4294967296, 4294967297, 2**53 + 1, 2**63, 2**64 - 1]


def test_smp_1_every_seed_of_64_bits_is_its_own_stream():
    streams = {seed: tokens(FLAT, 40, seed=seed, temperature=1.0, top_k=None) for seed in SEEDS}
    assert len({tuple(stream) for stream in streams.values()}) == len(SEEDS), "a seed was cut or wrapped"
    for seed, stream in streams.items():
        assert tokens(FLAT, 40, seed=seed, temperature=1.0, top_k=None) == stream
    assert tokens(FLAT, 40, temperature=1.0, top_k=None) == streams[0], "absent is 0"


@pytest.mark.parametrize("seed", [2**64, -1, 1.5, "7", True])
def test_smp_1_what_is_no_seed_is_refused(seed):
    with pytest.raises(InvalidGenerationConfig) as caught:
        GenerationConfig(seed=seed)
    assert caught.value.param == "seed"


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-45, 1e-300])
def test_smp_3_tiny_temperatures_take_the_best(temperature):
    assert tokens([1, 2, 3], 200, temperature=temperature, top_k=3) == [2] * 200
    assert tokens([1, 2, 3], 200, temperature=temperature, top_k=None) == [2] * 200


def test_smp_3_a_tie_takes_the_lowest_id():
    assert tokens([3, 3, 1], 50, temperature=0) == [0] * 50


@pytest.mark.parametrize("temperature", [1e9, 3.4e38])
@pytest.mark.parametrize("top_k", [2, 3, None])
def test_smp_3_huge_temperatures_are_near_uniform_over_what_is_kept(temperature, top_k):
    found = tokens([1, 2, 3], 3000, temperature=temperature, top_k=top_k)
    kinds = top_k or 3
    shifted = [id - (3 - kinds) for id in found]  # the best `kinds` ids are the last ones
    assert min(shifted) >= 0, "an id that top_k drops was chosen"
    assert chi_square(shifted, kinds) < CHI_SQUARE_1_PERCENT[kinds - 1]


@pytest.mark.parametrize("temperature", [-0.1, 1e39, float("inf"), float("nan")])
def test_smp_3_negative_and_not_finite_in_float32_is_refused(temperature):
    with pytest.raises(InvalidGenerationConfig) as caught:
        GenerationConfig(temperature=temperature)
    assert caught.value.param == "temperature"


@pytest.mark.parametrize("logits", [[3.4e38, -3.4e38, 0], [-3.4e38, -3.4e38, -3.4e38], [1e-45, 0, -1e-45]])
@pytest.mark.parametrize("temperature", [0, 1e-45, 1e-6, 1.0, 1e9, 3.4e38])
def test_smp_3_no_logits_and_temperature_make_a_nan(logits, temperature):
    for fields in ({"top_k": 3}, {"top_k": None}, {"top_p": 0.5}, {"min_p": 0.1, "top_k": None}):
        assert set(tokens(logits, 20, temperature=temperature, **fields)) <= {0, 1, 2}


@pytest.mark.parametrize("top_k", [0, 3, 4, 9999999, 2**31, None])
def test_smp_5_top_k_of_the_vocabulary_or_more_and_zero_are_off(top_k):
    fields = {"temperature": 1.0, "seed": 3}
    off = tokens([1, 2, 3], 300, top_k=None, **fields)
    assert set(off) == {0, 1, 2}
    assert tokens([1, 2, 3], 300, top_k=top_k, **fields) == off


def test_smp_5_top_k_one_is_greedy():
    assert tokens([1, 2, 3], 100, top_k=1, temperature=1e9) == [2] * 100


@pytest.mark.parametrize("top_k", [-1, 2.5, "3", True])
def test_smp_5_what_is_no_count_is_refused(top_k):
    with pytest.raises(InvalidGenerationConfig) as caught:
        GenerationConfig(top_k=top_k)
    assert caught.value.param == "top_k"


@pytest.mark.parametrize("bias,best", [({2: -100}, 1), ({0: 100}, 0), ({}, 2), ({2: -1}, 1), ({2: -0.5}, 2)])
def test_smp_7_logit_bias_is_added(bias, best):
    assert tokens([1, 2, 3], temperature=0, logit_bias=bias) == [best]


def test_smp_7_an_id_outside_the_vocabulary_is_refused_and_the_decoder_lives():
    decoder = FixedLogits([1, 2, 3], vocab_size=3)
    for bad in (3, 999999):
        with pytest.raises(InvalidGenerationConfig) as caught:
            generate(decoder, [0], GenerationConfig(logit_bias={bad: 5}))
        assert caught.value.param == "logit_bias" and str(bad) in str(caught.value)
    assert generate(decoder, [0], GenerationConfig(temperature=0, max_tokens=1)).tokens == [2]


@pytest.mark.parametrize("bias", [{"abc": 1}, {-1: 1}, [[2, -100]], {2: float("nan")}, {2: 1e9}])
def test_smp_7_what_is_no_bias_is_refused(bias):
    with pytest.raises(InvalidGenerationConfig) as caught:
        GenerationConfig(logit_bias=bias)
    assert caught.value.param == "logit_bias"


def test_smp_9_choices_differ_and_repeat_under_the_seed(tmp_path):
    config = GenerationConfig(temperature=0.9, seed=1, max_tokens=30, top_k=None)
    session = ModelSession.load_file(toys.logits(tmp_path, FLAT))

    def choices(n: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(n)]
        request = Request([0], config, n=n, on_token=lambda choice, sampled: found[choice].append(sampled.id))
        session.scheduler.submit(request)
        assert request.wait(60)
        return found

    first, second, third = choices(3)
    assert first != second != third != first and choices(2) == [first, second]
    assert choices(1) == [first], "choice 0 is what n = 1 gives"
    assert chi_square(first + second, 64) < CHI_SQUARE_1_PERCENT[63]
