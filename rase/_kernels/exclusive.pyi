"""One call at a time, without a moment at which an interrupt could leave the claim behind."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

class InUse(Exception):
    """Another call is running."""

class Exclusive:
    """Runs one function at a time."""

    def call(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """``function(*arguments)``. Raises ``InUse`` when another call of this object is running."""
