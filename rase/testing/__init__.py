"""The backend contract as tests: what every backend promises, for whoever writes one.

A package that provides a backend (entry point ``rase.backends``) runs all of it in a few lines, with pytest:

    from rase.testing import BackendContract

    class TestMine(BackendContract):
        exact = False            # close to each other, not equal bits
        def backend(self):
            return MyBackend()

``OpContract``       every op of the vocabulary against ``backends/reference.py``, in every tensor format; and
                     for each op, that a fault planted in it is seen
``ModelContract``    small models of every architecture against the reference (the gates of rule R9)
``ProgramContract``  what a program keeps to: the same results whatever happens around (rules R1 to R5, R8),
                     page tables, batches, refusals, closing, memory
``BackendContract``  the three together

What a backend promises are attributes of the class; ``contract.Promises`` lists them.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("rase.testing.contract", "rase.testing.ops", "rase.testing.small_models")

from rase.testing.contract import ProgramContract  # noqa: E402
from rase.testing.ops import OpContract  # noqa: E402
from rase.testing.promises import Promises  # noqa: E402
from rase.testing.small_models import ModelContract  # noqa: E402

__all__ = ["BackendContract", "ModelContract", "OpContract", "ProgramContract", "Promises"]


class BackendContract(OpContract, ModelContract, ProgramContract):
    """All that a backend promises."""
