"""GenerationConfig: defaults, ranges, and that every refusal names its field."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest

from rase.engine.config import GenerationConfig
from rase.errors import InvalidGenerationConfig

NAN, INF = float("nan"), float("inf")


def test_the_defaults_of_the_contract():
    config = GenerationConfig()
    assert (config.max_tokens, config.temperature, config.top_k, config.seed) == (256, 0.7, 40, 0)
    assert config.stop_tokens == () and config.logit_bias == {} and config.logprobs is None
    assert (config.top_p, config.min_p, config.repetition_penalty) == (1.0, 0.0, 1.0)
    assert (config.presence_penalty, config.frequency_penalty) == (0.0, 0.0)
    assert not config.greedy and not config.penalised


REFUSED = {
    "max_tokens": [0, -1, 1.5, "7", None, True, NAN, INF, 10.0],
    "temperature": [-0.1, NAN, INF, -INF, 1e39, 10**400, "1", True, None, 1j, []],
    "top_k": [-1, 2.5, "40", True, False, NAN],
    "seed": [-1, 2**64, 1.5, "7", True, None, NAN],
    "stop_tokens": [5, "12", [-1], [1.5], [True], None, [2**31]],
    "top_p": [-0.1, 1.1, NAN, INF, True, None, "0.5"],
    "min_p": [-0.1, 1.1, NAN, True, None],
    "repetition_penalty": [0.0, -1.0, NAN, INF, True, None, 1e39],
    "presence_penalty": [-2.1, 2.1, NAN, True, None],
    "frequency_penalty": [-2.1, 2.1, NAN, INF, None],
    "logit_bias": [[[2, -100]], None, {"2": 1}, {-1: 1}, {1.5: 1}, {True: 1}, {1: NAN}, {1: 101}, {1: "5"}],
    "logprobs": [-1, 21, True, 1.5],
}  # fmt: skip


@pytest.mark.parametrize(
    "field,value", [(field, value) for field, values in REFUSED.items() for value in values]
)
def test_bad_values_are_refused_by_name(field, value):
    with pytest.raises(InvalidGenerationConfig) as caught:
        GenerationConfig(**{field: value})
    assert caught.value.param == field
    assert field in str(caught.value) and caught.value.expected is not None


ACCEPTED = {
    "max_tokens": [1, 10**9, np.int64(5)],
    "temperature": [0, 0.0, -0.0, 1e-45, 1e-300, 3.4e38, 1, np.float32(0.5), Fraction(1, 2)],
    "top_k": [None, 0, 1, 9999999, 2**31, 2**70],
    "seed": [0, 2**32 + 1, 2**53 + 1, 2**63, 2**64 - 1, np.uint64(7)],
    "stop_tokens": [[], (1, 2), {3}, np.array([4, 5])],
    "top_p": [0, 0.0, 1, 0.5],
    "min_p": [0, 1],
    "repetition_penalty": [1e-3, 1.1, 100],
    "logit_bias": [{}, {5: -100, 7: 100.0}, {np.int64(2): np.float32(1)}],
    "logprobs": [None, 0, 20],
}  # fmt: skip


@pytest.mark.parametrize(
    "field,value", [(field, value) for field, values in ACCEPTED.items() for value in values]
)
def test_good_values_are_kept(field, value):
    config = GenerationConfig(**{field: value})
    stored = getattr(config, field)
    assert stored == (tuple(value) if field == "stop_tokens" else value)
    assert pickle.loads(pickle.dumps(config)) == config


def test_nothing_of_numpy_is_left_inside():
    config = GenerationConfig(seed=np.uint64(3), temperature=np.float32(0.5), stop_tokens=np.array([1]))
    assert [type(value) for value in (config.seed, config.temperature, config.stop_tokens[0])] == [
        int,
        float,
        int,
    ]


def test_greedy_is_temperature_zero_in_float32_or_top_k_one():
    assert GenerationConfig(temperature=0).greedy and GenerationConfig(top_k=1).greedy
    assert GenerationConfig(temperature=1e-46).greedy
    assert not GenerationConfig(temperature=1e-45).greedy
    assert bool(np.float32(2.0**-150) == 0) and GenerationConfig(temperature=2.0**-150).greedy


def test_positional_arguments_are_refused():
    with pytest.raises(TypeError):
        GenerationConfig(10)  # type: ignore[misc]


def test_an_unreadably_long_value_is_cut_in_the_message():
    with pytest.raises(InvalidGenerationConfig) as caught:
        GenerationConfig(top_k="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_biased_ids_are_checked_against_the_vocabulary():
    GenerationConfig(logit_bias={9: 1}).check_vocab(10)
    with pytest.raises(InvalidGenerationConfig, match="below 9"):
        GenerationConfig(logit_bias={9: 1}).check_vocab(9)
