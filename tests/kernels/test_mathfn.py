"""Our exp, log, pow, sin, cos, tanh and erf against mpmath, and the rotary tables made with them."""

from __future__ import annotations

import hashlib
import math
import struct

import mpmath as mp
import numpy as np
import pytest

from rase._kernels import mathfn

LIMIT = 0.8  # ulp
INF, NAN, MAX, TINY = math.inf, math.nan, 1.7976931348623157e308, 5e-324
mp.mp.prec = 200


def call(name: str, *arguments: np.ndarray) -> np.ndarray:
    arrays = [np.ascontiguousarray(a, np.float64) for a in arguments]
    out = np.empty(arrays[0].shape)
    getattr(mathfn, name)(*arrays, out)
    return out


def one(name: str, *arguments: float) -> float:
    return float(call(name, *[np.array([a], np.float64) for a in arguments])[0])


def ulps(found: float, exact: mp.mpf) -> float:
    """Distance from the exact value in units of the last place of a double of that size."""
    if exact == 0 or (found == 0 and abs(exact) < mp.mpf(2) ** -1075):
        return 0.0 if found == 0 else INF
    exponent = max(int(mp.floor(mp.log(abs(exact), 2))), -1022)
    return float(abs(mp.mpf(found) - exact) / mp.mpf(2) ** (exponent - 52))


def worst(name: str, exact, *arguments: np.ndarray) -> tuple[float, tuple]:
    found = call(name, *arguments)
    errors = [
        ulps(y, exact(*map(mp.mpf, xs)))
        for y, xs in zip(found.tolist(), zip(*arguments, strict=True), strict=True)
    ]
    index = int(np.argmax(errors))
    return errors[index], tuple(float(a[index]) for a in arguments)


def spread(low: float, high: float, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, n)


def log_spread(low: float, high: float, n: int, seed: int) -> np.ndarray:
    """Sizes spread evenly over the exponents, low and high as powers of two."""
    return np.ldexp(spread(0.5, 1.0, n, seed), np.random.default_rng(seed + 1).integers(low, high, n))


N = 1500
signs = np.where(np.arange(N) % 2, 1.0, -1.0)
RANGES = {
    "exp": [
        spread(-708, 709.7, N, 1),
        spread(-745.2, -708, N, 2),
        spread(-1, 1, N, 3),
        signs * log_spread(-80, 0, N, 4),
    ],
    "log": [log_spread(-1070, 1023, N, 5), spread(0.5, 2, N, 6), 1 + signs * log_spread(-52, -1, N, 7)],
    "log1p": [signs * log_spread(-70, -1, N, 8), log_spread(-1, 1023, N, 9), spread(-1, 1, N, 10)],
    "sin": [
        spread(-1, 1, N, 11),
        spread(-1e6, 1e6, N, 12),
        signs * log_spread(-30, 31, N, 13),
        log_spread(31, 1023, N, 14),
    ],
    "tanh": [
        spread(-1, 1, N, 15),
        spread(0.15, 0.25, N, 16),
        spread(-20, 20, N, 17),
        signs * log_spread(-60, 4, N, 18),
    ],
    "erf": [spread(-1.2, 1.2, N, 19), spread(-6.5, 6.5, N, 20), signs * log_spread(-60, 2, N, 21)],
}  # fmt: skip
RANGES["cos"] = RANGES["sin"]


@pytest.mark.parametrize(
    "name,part", [(name, part) for name, parts in RANGES.items() for part in range(len(parts))]
)
def test_below_one_ulp(name, part):
    error, where = worst(name, getattr(mp, name), RANGES[name][part])
    assert error < LIMIT, f"{name}{where}: {error:.3f} ulp"


@pytest.mark.parametrize("multiples", [range(1, 400), range(10**6, 10**6 + 200), range(2**30, 2**30 + 200)])
def test_sin_and_cos_beside_the_multiples_of_half_pi(multiples):
    x = np.array([float(k * mp.pi / 2) for k in multiples])  # where the reduction cancels most
    for name in ("sin", "cos"):
        error, where = worst(name, getattr(mp, name), x)
        assert error < LIMIT, f"{name}{where}: {error:.3f} ulp"


def test_the_hardest_double_of_all_for_a_reduction():
    x = math.ldexp(
        6381956970095103, 797
    )  # cos(x) is -4.7e-19: the closest that a double comes to an odd pi/2
    assert ulps(one("cos", x), mp.cos(mp.mpf(x))) < LIMIT
    assert abs(one("cos", x)) < 1e-18


def test_pow_below_one_ulp():
    x = log_spread(-1022, 1023, 4000, 30)
    y = spread(-1, 1, 4000, 31) * 700 / np.maximum(np.abs(np.log(x)), 1e-3)
    near = 1 + np.where(np.arange(2000) % 2, 1, -1) * log_spread(-40, -2, 2000, 32)
    thetas = np.tile([1e4, 5e5, 1e6, 1e7], 64)
    for base, power in ((x, y), (near, 700 / np.log(near)), (thetas, -np.repeat(np.arange(64), 4) / 64)):
        error, where = worst("pow", mp.power, base, power)
        assert error < LIMIT, f"pow{where}: {error:.3f} ulp"


def test_pow_is_exact_where_the_result_is_a_double():
    for x in (2.0, 3.0, 10.0, 1.5, -3.0):
        for y in range(-3, 16):
            exact = mp.power(x, y)
            if mp.mpf(float(exact)) == exact:
                assert one("pow", x, float(y)) == float(exact), (x, y)
    assert one("pow", 2.0, -1074.0) == TINY and one("pow", 9.0, 0.5) == 3.0


@pytest.mark.parametrize(
    "name,x,y",
    [
        ("exp", 0.0, 1.0), ("exp", -INF, 0.0), ("exp", INF, INF), ("exp", 709.79, INF),
        ("exp", -746.0, 0.0), ("exp", -1e308, 0.0), ("exp", 1e308, INF), ("exp", -745.13, TINY),
        ("exp", NAN, NAN), ("exp", TINY, 1.0),
        ("log", 1.0, 0.0), ("log", 0.0, -INF), ("log", -0.0, -INF), ("log", -1.0, NAN), ("log", INF, INF),
        ("log", NAN, NAN), ("log", -INF, NAN), ("log", TINY, -744.4400719213812),
        ("log", MAX, 709.782712893384),
        ("log1p", 0.0, 0.0), ("log1p", -0.0, -0.0), ("log1p", -1.0, -INF), ("log1p", -1.5, NAN),
        ("log1p", INF, INF),
        ("log1p", TINY, TINY), ("log1p", MAX, 709.782712893384), ("log1p", NAN, NAN),
        ("sin", 0.0, 0.0), ("sin", -0.0, -0.0), ("sin", INF, NAN), ("sin", -INF, NAN), ("sin", NAN, NAN),
        ("sin", TINY, TINY), ("cos", 0.0, 1.0), ("cos", -0.0, 1.0), ("cos", INF, NAN), ("cos", NAN, NAN),
        ("tanh", 0.0, 0.0), ("tanh", -0.0, -0.0), ("tanh", INF, 1.0), ("tanh", -INF, -1.0),
        ("tanh", NAN, NAN),
        ("tanh", TINY, TINY), ("tanh", MAX, 1.0),
        ("erf", 0.0, 0.0), ("erf", -0.0, -0.0), ("erf", INF, 1.0), ("erf", -INF, -1.0), ("erf", NAN, NAN),
        ("erf", -MAX, -1.0),
    ],
)  # fmt: skip
def test_edges(name, x, y):
    found = one(name, x)
    assert struct.pack("d", found) == struct.pack("d", y) or (math.isnan(y) and math.isnan(found)), found


@pytest.mark.parametrize(
    "x", [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, INF, -INF, NAN, TINY, -TINY, MAX, -MAX, -8.0]
)
@pytest.mark.parametrize(
    "y",
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        INF,
        -INF,
        NAN,
        1e300,
        -1e300,
        2.0**53,
        9007199254740991.0,
    ],
)
def test_pow_follows_annex_f(x, y):
    try:
        expected = math.pow(x, y)
    except OverflowError:
        expected = -INF if x < 0 and y % 2 == 1 else INF
    except ValueError:  # Python refuses what C answers: 0 to a negative power, a root of a negative number
        expected = NAN if x != 0 else math.copysign(INF, x) if y % 2 == 1 else INF
    found = one("pow", x, y)
    if math.isnan(expected):
        assert math.isnan(found)
    elif math.isinf(expected) or expected == 0 or expected == 1:
        assert struct.pack("d", found) == struct.pack("d", expected), (found, expected)
    else:
        assert abs(found - expected) <= 2e-16 * abs(expected)


def test_symmetries_hold_to_the_bit():
    x = np.concatenate([spread(0, 8, 500, 40), log_spread(-40, 40, 500, 41)])
    for name in ("sin", "tanh", "erf"):
        assert np.array_equal(call(name, -x), -call(name, x)), name
    assert np.array_equal(call("cos", -x), call("cos", x))


def test_the_bits_are_these_on_every_machine():
    x = np.arange(-2000, 2001) / 64
    digest = {}
    for name in ("exp", "log", "log1p", "sin", "cos", "tanh", "erf"):
        values = call(name, np.abs(x) if name.startswith("log") else x)
        digest[name] = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    digest["pow"] = hashlib.sha256(call("pow", np.abs(x), x).tobytes()).hexdigest()[:16]
    assert digest == GOLDEN


GOLDEN = {
    "exp": "5c55ec23afc92c77",
    "log": "097123c2d986cd82",
    "log1p": "79da91cd487187c0",
    "sin": "614d267468396462",
    "cos": "9ed4a1b272bd3ae1",
    "tanh": "3e98951f66cbc0e3",
    "erf": "2e77a04c6b1cf0b0",
    "pow": "73e7de0c654f059a",
}


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="3 elements"):
        mathfn.exp(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError):
        mathfn.pow(np.zeros(3), np.zeros(4), np.zeros(3))


@pytest.mark.parametrize("theta,n_dims", [(1e4, 64), (5e5, 128), (1e6, 128), (1e4, 2)])
def test_inverse_frequencies(theta, n_dims):
    out = np.empty(n_dims // 2)
    mathfn.inv_freq(theta, n_dims, out)
    for i, value in enumerate(out):
        assert ulps(value, mp.power(theta, mp.mpf(-2 * i / n_dims))) < LIMIT
    factors = np.linspace(1, 32, n_dims // 2, dtype=np.float32)
    with_factors = np.empty_like(out)
    mathfn.inv_freq(theta, n_dims, with_factors, factors)
    assert np.array_equal(with_factors, out / factors.astype(np.float64))


def test_rope_table_is_the_cosine_and_sine_of_each_angle():
    frequencies = np.empty(32)
    mathfn.inv_freq(1e4, 64, frequencies)
    start, stop = 999_990, 1_000_000
    cos, sin = np.empty((10, 32), np.float32), np.empty((10, 32), np.float32)
    mathfn.rope_table(start, stop, frequencies, cos, sin, scale=4.0, attn_factor=1.25)
    for row, position in enumerate(range(start, stop)):
        for pair in range(32):
            angle = mp.mpf((position / 4.0) * frequencies[pair])
            assert cos[row, pair] == np.float32(float(mp.cos(angle) * 1.25))
            assert sin[row, pair] == np.float32(float(mp.sin(angle) * 1.25))


def test_rope_table_does_not_depend_on_where_it_starts():
    frequencies = np.array([1.0, 0.1, 0.01])
    whole = [np.empty((100, 3), np.float32) for _ in range(2)]
    mathfn.rope_table(0, 100, frequencies, *whole)
    part = [np.empty((7, 3), np.float32) for _ in range(2)]
    mathfn.rope_table(93, 100, frequencies, *part)
    assert np.array_equal(whole[0][93:], part[0]) and np.array_equal(whole[1][93:], part[1])


@pytest.mark.parametrize("arguments", [(5, 4), (-1, 4)])
def test_rope_table_refuses_bad_ranges(arguments):
    with pytest.raises(ValueError):
        mathfn.rope_table(*arguments, np.ones(2), np.empty((1, 2), np.float32), np.empty((1, 2), np.float32))
