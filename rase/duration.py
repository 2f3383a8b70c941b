"""Durations as people write them: seconds, or ``5m``, ``1h30m``, ``500ms``; negative is for ever."""

from __future__ import annotations

import math
import re

__all__ = ["FOREVER", "seconds"]

FOREVER = math.inf

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def seconds(value: str | int | float) -> float:
    """The number of seconds that ``value`` means; ``FOREVER`` for a negative one.

    Raises ``ValueError`` for anything else, NaN and truth values included.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(value)
    if not isinstance(value, str):
        if value != value:  # NaN
            raise ValueError(value)
        return float(value) if 0 <= value <= 1e12 else FOREVER
    text = value.strip()
    body = text.removeprefix("-")
    if _NUMBER.fullmatch(body):
        total = float(body)
    elif body and (parts := _PART.findall(body)) and "".join(map("".join, parts)) == body:
        total = sum(float(count) * _UNITS[unit] for count, unit in parts)
    else:
        raise ValueError(value)
    return FOREVER if text.startswith("-") else total
