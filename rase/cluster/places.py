"""``Places``: which requests each replica has, as who sends them knows, from the moment of the choice.

What a replica says of itself is older: of ten requests that come in one instant none is counted there yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

__all__ = ["Places"]


class Places:
    """Requests by id, each at most once."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[str, Callable[[], bool]]] = {}

    def take(self, request: str, replica: str, given_up: Callable[[], bool] = lambda: False) -> None:
        """``request`` goes to ``replica``, or is there; ``given_up`` says whether it will never be sent."""
        self._at[request] = replica, given_up

    def leave(self, request: str) -> None:
        """``request`` has ended, or goes elsewhere."""
        self._at.pop(request, None)

    def counts(self) -> Counter[str]:
        """How many requests each replica has."""
        self._at = {request: at for request, at in self._at.items() if not at[1]()}
        return Counter(replica for replica, _ in self._at.values())
