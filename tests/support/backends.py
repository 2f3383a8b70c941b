"""The backends that tests run on, by name."""

from __future__ import annotations

from rase.backends import get_backend
from rase.backends.base import Backend
from rase.backends.reference import ReferenceBackend

BACKENDS = ["reference", "cpu"]


def backend_named(name: str) -> Backend:
    """A backend for tests; the reference one rounds nothing, so that it can meet the oracle."""
    return ReferenceBackend("float64") if name == "reference" else get_backend(name)
