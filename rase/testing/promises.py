"""``Promises``: what a backend says of itself, as attributes of its test class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from rase.backends.base import Backend, Program
from rase.testing.programs import assert_close, assert_same_bits
from rase.testing.random_model import RandomModel

__all__ = ["Promises"]


class Promises:
    """Base of the contract's classes: override ``backend``, and the attributes that are different.

    ===============  =======================================================================================
    ``exact``        the same bits whatever happens around a request; else an NMSE of at most ``near``
    ``numerics``     the numerics classes that it has; a program of another one is refused
    ``threads``      numbers of threads to compare
    ``gates``        the most NMSE from the float64 reference: of one op; of models with float weights by
                     numerics class; of those with ``quantized`` ones
    ``refused``      op cases and small models that it refuses by name, and formats
    ``options``      further ``CompileOptions`` of every program
    ===============  =======================================================================================
    """

    exact = True
    near = 1e-12
    numerics: tuple[str, ...] = ("portable", "fast")
    threads: tuple[int, ...] = (1, 2, 3)
    gates: ClassVar[Mapping[str, float]] = {
        "op": 1e-4, "portable": 1e-6, "fast": 2e-4, "quantized": 1e-3,
    }  # fmt: skip
    refused: Collection[str] = ()
    options: ClassVar[Mapping[str, Any]] = {}

    def backend(self) -> Backend:
        """A new instance of the backend."""
        raise NotImplementedError

    def compile(self, tiny: RandomModel, **options: Any) -> Program:
        """A program of ``tiny`` with 64 pages reserved."""
        return tiny.compile(self.backend(), **{"numerics": self.numerics[-1], **self.options, **options})

    def same(self, found: np.ndarray, expected: np.ndarray, what: str) -> None:
        """Fail unless both are what this backend calls the same."""
        if self.exact:
            assert_same_bits(found, expected, what)
        else:
            assert found.shape == expected.shape, what
            if expected.size:
                assert_close(found, expected, self.near, what)
