"""Prints the coefficients of ``rase/_kernels/mathfn_erf.h``: Chebyshev fits in 60 digits, by mpmath.

Run it as ``python tests/support/fit_erf.py`` and paste what it prints.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60

SMALL = ("SMALL", lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 0, 0.25, 8)  # of z = x^2, x in (0, 0.5]
# erf(x) - erf(middle), the latter rounded to a double, of x - middle
MIDDLES = [("LOW", 0.5, 0.75, 11), ("HIGH", 0.75, 1.0, 11), ("ABOVE", 1.0, 1.25, 11)]
# exp(x^2) erfc(x) of x - middle; the further out, the less of it reaches erf = 1 - erfc
TAILS = [("NEAR", 1.25, 1.75, 12), ("MIDDLE", 1.75, 3.0, 15), ("FAR", 3.0, 6.0, 15)]


def fit(f: Callable[[mp.mpf], mp.mpf], low: float, high: float, degree: int) -> tuple[list[float], float]:
    """Coefficients, highest power first, and the largest error at 200 points."""
    exact = mp.chebyfit(f, [mp.mpf(low), mp.mpf(high)], degree + 1)
    rounded = [float(c) for c in exact]
    points = [low + (high - low) * (i + mp.mpf(1) / 3) / 200 for i in range(200)]
    error = max(abs(mp.polyval(exact, x) - f(x)) for x in points)
    return rounded, float(error)


def show(name: str, coefficients: list[float], error: float, weight: float) -> None:
    print(f"/* absolute error below 2^{int(mp.log(error * weight, 2)) + 1} in erf */")
    print(f"static const double RASE_ERF_{name}[{len(coefficients)}] = {{")
    for start in range(0, len(coefficients), 4):
        print("    " + " ".join(f"{c.hex()}," for c in coefficients[start : start + 4]))
    print("};")


if __name__ == "__main__":
    name, function, low, high, degree = SMALL
    epsilon = mp.mpf(10) ** -30
    show(name, *fit(lambda z: function(z + epsilon), low, high, degree), 1.0)
    for name, low, high, degree in MIDDLES:
        middle = (low + high) / 2
        value = float(mp.erf(middle))
        print(f"/* erf({middle}) = {value.hex()} */")
        shifted = fit(
            lambda d, middle=middle, value=value: mp.erf(d + middle) - mp.mpf(value),
            low - middle, high - middle, degree,
        )  # fmt: skip
        show(name, *shifted, 1.0)
    for name, low, high, degree in TAILS:
        middle = (low + high) / 2
        scaled = fit(
            lambda d, middle=middle: mp.exp((d + middle) ** 2) * mp.erfc(d + middle),
            low - middle, high - middle, degree,
        )  # fmt: skip
        show(name, *scaled, float(mp.exp(-low * low)))
