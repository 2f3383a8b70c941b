"""The sampler against an oracle in plain Python; its order of ties, its faults and its random numbers."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import threading

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rase._kernels import mathfn
from rase._kernels.sampler import RowSampler, philox, uniform
from rase.engine.config import GenerationConfig
from rase.engine.sampler import History, Sampler
from rase.errors import InvalidGenerationConfig, InvalidLogits
from tests.support.sampler_oracle import TooClose, choose, kept

INF, NAN = math.inf, math.nan
GREEDY = GenerationConfig(temperature=0.0)

logit = st.one_of(
    st.integers(-4, 4).map(float),  # many ties
    st.floats(-30, 30, width=32),
    st.sampled_from([-0.0, 0.0, 1e-40, -1e-40, 3.4e38, -3.4e38]),
)
configs = st.builds(
    GenerationConfig,
    temperature=st.sampled_from([0.0, 1e-45, 1e-6, 0.3, 0.7, 1.0, 2.0, 1e9, 3.4e38]),
    top_k=st.sampled_from([None, 0, 1, 2, 3, 7, 40, 2**31]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, 1), st.sampled_from([-100.0, 1.5, 100.0]), max_size=2),
    seed=st.integers(0, 2**64 - 1),
)


def pick(logits, config=GREEDY, position=0, choice=0, history=None, size=None) -> int:
    row = np.asarray(logits, np.float32)
    return Sampler(config, size or len(row), choice).sample(row, position, history).id


@settings(max_examples=800)
@given(st.lists(logit, min_size=2, max_size=60), configs, st.integers(0, 2**40), st.integers(0, 3), st.data())
def test_agrees_with_the_oracle(logits, config, position, choice, data):
    ids = st.lists(st.integers(0, len(logits) + 3), max_size=12)
    prompt, answer = data.draw(ids, "prompt"), data.draw(ids, "answer")
    history = History(prompt, len(logits))
    for id in answer:
        history.push(id)
    huge = max(map(abs, logits)) > 1e38
    assume(not (huge and (config.penalised or config.logit_bias)))  # clamped: a test of its own
    try:
        expected = choose(logits, config, position, choice, prompt, answer)
    except TooClose:
        assume(False)
    assert pick(logits, config, position, choice, history) == expected


@pytest.mark.parametrize("n", [255, 256, 257, 5000])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 40}, {"top_k": 1000}, {"top_k": None}, {"top_k": 40, "top_p": 0.9},
        {"top_k": 0, "top_p": 0.9}, {"top_k": 0, "top_p": 0.9, "temperature": 5.0},
        {"top_k": 0, "min_p": 0.05}, {"top_k": 300, "min_p": 0.1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["random", "ascending", "descending", "ties", "flat"])
def test_agrees_with_the_oracle_over_many_blocks(n, fields, kind):
    config = GenerationConfig(**{"temperature": 1.0, "seed": 5, **fields})
    row = np.random.default_rng(n).normal(0, 3, n).astype(np.float32)
    row = {
        "random": row,
        "ascending": np.sort(row),
        "descending": -np.sort(-row),
        "ties": np.round(row),
        "flat": row * 0,
    }[kind]
    compared = 0
    for position in range(12):
        try:
            expected = choose(row, config, position)
        except TooClose:
            continue
        assert pick(row, config, position) == expected, position
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 255, 256, 257, 1000])
def test_the_lowest_id_wins_a_tie_wherever_it_is(n):
    for best in {0, n // 2, n - 1}:
        row = np.zeros(n, np.float32)
        row[best:] = 2.0
        assert pick(row) == best
        assert pick(row, GenerationConfig(top_k=1)) == best
    assert pick([-0.0, 0.0]) == 0 and pick([-1, 0.0, -0.0]) == 1, "the two zeros are equal"


def test_ties_at_the_edge_of_top_k_keep_the_lowest_ids():
    config = GenerationConfig(temperature=1.0, top_k=3)
    row = [1.0, 2.0, 2.0, 2.0, 2.0, 3.0]
    seen = {pick(row, config, position) for position in range(400)}
    assert seen == {5, 1, 2}


@pytest.mark.parametrize(
    "config", [GREEDY, GenerationConfig(), GenerationConfig(top_k=0), GenerationConfig(top_p=0.5)]
)
@pytest.mark.parametrize(
    "bad,word",
    [
        ([1, NAN, 3], "NaN"),
        ([NAN] * 3, "NaN"),
        ([1, INF, 0], "infinity"),
        ([INF, NAN, 0], "NaN"),
        ([1, -INF, 0], "infinity"),
        ([-INF] * 3, "infinity"),
        ([-INF, NAN, 0], "NaN"),
    ],
)
@pytest.mark.parametrize("pad", [0, 13, 300])
def test_faulty_logits_are_an_error_and_the_sampler_goes_on(config, bad, word, pad):
    row = np.array([*([0.5] * pad), *bad], np.float32)
    sampler = Sampler(config, len(row))
    with pytest.raises(InvalidLogits, match=word) as caught:
        sampler.sample(row, 17)
    assert caught.value.data["position"] == 17
    good = np.zeros(len(row), np.float32)
    assert sampler.sample(good, 17) == Sampler(config, len(row)).sample(good, 17)


@pytest.mark.parametrize("n", [7, 16, 300, 5000])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_bad_logit_is_seen_wherever_it_is(n, bad):
    for at in {0, 3, n // 2, max(n - 17, 0), n - 1}:
        row = np.zeros(n, np.float32)
        row[at] = bad
        with pytest.raises(InvalidLogits):
            pick(row)


@pytest.mark.parametrize("sign", [0x00000000, 0x80000000])
@pytest.mark.parametrize("payload", [0x7F800001, 0x7FC00000, 0x7FFFFFFF])
def test_every_kind_of_nan_is_seen(sign, payload):
    row = np.zeros(40, np.float32)
    row.view(np.uint32)[21] = sign | payload
    with pytest.raises(InvalidLogits, match="NaN"):
        pick(row)


def test_padding_rows_are_not_chosen_listed_or_looked_at():
    row = np.array([1, 3, 2, 50, NAN, INF], np.float32)
    for config in (
        GREEDY,
        GenerationConfig(temperature=1e9),
        GenerationConfig(temperature=1e9, top_k=0, logprobs=20),
    ):
        for position in range(50):
            sampled = Sampler(config, 3).sample(row, position)
            assert sampled.id < 3
            assert sorted(id for id, _ in sampled.top) in ([], [0, 1, 2])
    assert Sampler(GREEDY, 3).sample(row, 0, History([4, 5, 1], 3)).id == 1


def test_the_row_is_not_changed():
    row = np.array([1.0, 2.0, 3.0], np.float32)
    row.setflags(write=False)
    config = GenerationConfig(temperature=0.0, repetition_penalty=2.0, logit_bias={0: 5.0})
    assert pick(row, config, history=History([2], 3)) == 0
    assert row.tolist() == [1, 2, 3]


def test_penalties_count_prompt_and_answer_as_documented():
    row = [2.0, -1.0, 0.5, 0.4]

    def scores(config, prompt, answer):
        """Read the adjusted logits back: they are what the sampler is greedy about."""
        history = History(prompt, 4)
        for id in answer:
            history.push(id)
        order = []
        left = list(row)
        for _ in range(4):
            best = Sampler(config, 4).sample(np.array(left, np.float32), 0, history).id
            order.append(best)
            left[best] = -3e38
        return order

    base = {"temperature": 0.0}
    assert scores(GenerationConfig(**base, repetition_penalty=5.0), [0, 1], []) == [
        2,
        0,
        3,
        1,
    ]  # 0.4 ties 0.4
    assert scores(GenerationConfig(**base, presence_penalty=2.0), [0], []) == [0, 2, 3, 1]
    assert scores(GenerationConfig(**base, presence_penalty=2.0), [], [0]) == [2, 3, 0, 1]
    assert scores(GenerationConfig(**base, frequency_penalty=0.9), [], [0, 0]) == [2, 3, 0, 1]
    assert scores(GenerationConfig(**base, frequency_penalty=0.9), [], [0]) == [0, 2, 3, 1]
    assert scores(GenerationConfig(**base, repetition_penalty=0.5, presence_penalty=-2.0), [], [1]) == [
        0,
        1,
        2,
        3,
    ]


def test_adjusted_logits_stay_finite():
    row = np.array([3e38, -3e38, 1.0], np.float32)
    config = GenerationConfig(temperature=1.0, repetition_penalty=1e-6, logit_bias={1: -100.0})
    assert pick(row, config, history=History([0, 1, 2], 3)) == 0
    config = GenerationConfig(temperature=1.0, repetition_penalty=1e6)
    assert pick(row, config, history=History([0, 1], 3)) == 0


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(InvalidGenerationConfig):
        Sampler(GenerationConfig(logit_bias={3: 1.0}), 3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "fields", [{"top_k": 0}, {"top_k": 5}, {"top_k": 0, "top_p": 0.95}, {"top_k": 0, "min_p": 0.05}]
)
def test_frequencies_follow_the_distribution(temperature, fields):
    row = [0.0, 1.0, 2.0, -1.0, 0.5, 1.5]
    config = GenerationConfig(temperature=temperature, seed=11, **fields)
    pairs = kept([float(x) for x in row], config)
    total = sum(weight for _, weight in pairs)
    draws, sampler = 20_000, Sampler(config, 6)
    values = np.array(row, np.float32)
    counts = np.bincount([sampler.sample(values, position).id for position in range(draws)], minlength=6)
    expected = np.zeros(6)
    for id, weight in pairs:
        expected[id] = draws * weight / total
    some = expected > 0
    assert (counts[~some] == 0).all()
    statistic = ((counts - expected)[some] ** 2 / expected[some]).sum()
    assert statistic < 22, f"chi-square {statistic:.1f} with at most 5 degrees of freedom (99.9 %: 20.5)"


def test_logprobs_are_those_of_the_model_itself():
    row = np.array([1.0, 2.0, 3.0, -3.4e38, 2.0], np.float32)
    exact = row - np.log(np.exp(row.astype(np.float64)).sum())
    config = GenerationConfig(
        temperature=0.1, top_k=1, repetition_penalty=3.0, logit_bias={2: -100.0}, logprobs=20
    )
    sampled = Sampler(config, 5).sample(row, 0, History([1], 5))
    assert sampled.id == 4, "penalised and biased"
    assert sampled.logprob == pytest.approx(exact[4], abs=1e-12)
    assert [id for id, _ in sampled.top] == [2, 1, 4, 0, 3], "best first, ties by id"
    assert [value for _, value in sampled.top] == pytest.approx(exact[[2, 1, 4, 0, 3]], abs=1e-12)
    none = Sampler(GenerationConfig(logprobs=0), 5).sample(row, 0)
    assert none.top == () and none.logprob == pytest.approx(exact[none.id], abs=1e-12)
    assert Sampler(GREEDY, 5).sample(row, 0) == (2, None, ())


def test_logprobs_sum_to_one_over_a_large_vocabulary():
    row = np.random.default_rng(0).normal(0, 4, 20_001).astype(np.float32)
    sampler = Sampler(GenerationConfig(temperature=0.0, logprobs=20), len(row))
    sampled = sampler.sample(row, 0)
    exact = row.astype(np.float64) - row.max() - np.log(np.exp(row.astype(np.float64) - row.max()).sum())
    order = sorted(range(len(row)), key=lambda id: (-row[id], id))[:20]
    assert [id for id, _ in sampled.top] == order
    assert [value for _, value in sampled.top] == pytest.approx(exact[order], abs=1e-11)


PUBLISHED = [  # Random123, kat_vectors
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip


@pytest.mark.parametrize("counter,key,words", PUBLISHED)
def test_philox_gives_the_published_vectors(counter, key, words):
    assert philox(counter, key) == words


def test_the_random_number_is_the_top_of_two_philox_words():
    seed, choice, position = 0x0123456789ABCDEF, 3, 0x1_0000_0007
    words = philox((7, 1, choice, 0), (0x89ABCDEF, 0x01234567))
    assert uniform(seed, choice, position) == ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


def test_seed_choice_and_position_each_matter():
    base = uniform(1, 2, 3)
    others = [
        uniform(2, 2, 3),
        uniform(1, 3, 3),
        uniform(1, 2, 4),
        uniform(1 + 2**32, 2, 3),
        uniform(1, 2, 3 + 2**32),
    ]
    assert len({base, *others}) == 6
    numbers = np.array([uniform(0, 0, position) for position in range(20_000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01 and abs(numbers.std() - 12**-0.5) < 0.01
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03


def test_nothing_is_remembered_between_calls():
    row = np.random.default_rng(1).normal(0, 1, 300).astype(np.float32)
    config = GenerationConfig(temperature=1.0, top_k=0, seed=9)
    forward = [pick(row, config, position) for position in range(50)]
    one = Sampler(config, 300)
    assert [one.sample(row, position).id for position in reversed(range(50))] == forward[::-1]


def test_threads_with_their_own_samplers_agree():
    row = np.random.default_rng(1).normal(0, 1, 50_000).astype(np.float32)
    config = GenerationConfig(temperature=1.0, top_k=0, top_p=0.9, seed=9)
    expected = [pick(row, config, position) for position in range(10)]
    results: list[list[int]] = []

    def work():
        sampler = Sampler(config, len(row))
        results.append([sampler.sample(row, position).id for position in range(10)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_the_rounding_mode_of_the_host_does_not_matter():
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    row = np.random.default_rng(2).normal(0, 3, 4000).astype(np.float32)
    config = GenerationConfig(temperature=1.3, top_k=0, seed=3, logprobs=3)
    x, plain, moved = np.linspace(-20, 20, 1001), np.empty(1001), np.empty(1001)
    expected = [Sampler(config, 4000).sample(row, position) for position in range(30)]
    mathfn.exp(x, plain)
    sampler = Sampler(config, 4000)
    upward = 0x800  # FE_UPWARD on x86
    if libm.fegetround() != 0 or libm.fesetround(upward) != 0:
        pytest.skip("this machine names its rounding modes otherwise")
    try:
        found = [sampler.sample(row, position) for position in range(30)]
        mathfn.exp(x, moved)
        assert libm.fegetround() == upward, "restored"
    finally:
        libm.fesetround(0)
    assert found == expected and np.array_equal(plain, moved)


@pytest.mark.parametrize("arguments", [{"n": 0}, {"bias_ids": np.array([3], np.int32)}, {"n": 2**31}])
def test_the_kernel_checks_what_it_is_given(arguments):
    fields = {
        "n": 3, "top_k": 3, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0,
        "presence": 0.0, "frequency": 0.0, "seed": 0, "choice": 0, "greedy": False,
        "bias_ids": np.zeros(0, np.int32), "bias_values": np.zeros(0),
    }  # fmt: skip
    with pytest.raises(ValueError):
        RowSampler(**(fields | arguments))


def test_a_short_row_and_a_foreign_history_are_refused():
    sampler = Sampler(GREEDY, 5)
    with pytest.raises(ValueError, match="5 logits, found 4"):
        sampler.sample(np.zeros(4, np.float32), 0)
    with pytest.raises(ValueError, match="history"):
        sampler.sample(np.zeros(5, np.float32), 0, History([1], 6))
