"""Gates for measured figures: company on the machine lowers a speed, so a missed gate is measured again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

TRIES = 4
Found = TypeVar("Found")


def until(
    reached: Callable[[Found], bool],
    attempt: Callable[[], Found],
    show: Callable[[Found], str],
    figure: Callable[[str], None],
    tries: int = TRIES,
) -> None:
    """Measure until the gate is reached, and write the figure; fail with every try's."""
    shown = []
    for turn in range(1, tries + 1):
        found = attempt()
        shown.append(show(found))
        if reached(found):
            figure(shown[-1] + (f" (try {turn}: the machine was busy)" if turn > 1 else ""))
            return
    figure("failed: " + "; ".join(shown))
    raise AssertionError("; ".join(shown))
