"""``Limits``: the most that a machine can do with a program's threads, the yardstick of measured speeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What was measured at one moment.

    ``read_gb_per_s`` is memory bandwidth in 1e9 bytes, by the threads of generated tokens. ``peaks`` are 1e9
    operations a second by arithmetic unit, by the threads of prompt tokens. ``prompt_unit`` names the unit
    that multiplies prompts, which may be one that ``peaks`` lacks. ``details`` are facts for people: threads,
    instruction set, state of the machine.
    """

    read_gb_per_s: float
    peaks: Mapping[str, float]
    prompt_unit: str
    details: Mapping[str, Any]

    def better(self, other: Limits | None) -> Limits:
        """The greater limit of both in each number, with the details of this one."""
        if other is None:
            return self
        peaks = {unit: max(peak, other.peaks.get(unit, 0.0)) for unit, peak in self.peaks.items()}
        read = max(self.read_gb_per_s, other.read_gb_per_s)
        return Limits(read, peaks, self.prompt_unit, self.details)
