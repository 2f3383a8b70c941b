"""Fixtures of the benches: the real model, loaded once for each prompt arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.measure import Timer
from rase.session import ModelSession
from tests.conftest import smollm2

__all__ = ["load", "several", "smollm2"]


@pytest.fixture(scope="session")
def load(smollm2: Path) -> Callable[[str], ModelSession]:
    """``load("int8" | "f32")``: a session of SmolLM2 whose prompts take that arithmetic."""
    loaded: dict[str, ModelSession] = {}

    def load(arithmetic: str) -> ModelSession:
        if arithmetic not in loaded:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RASE_PREFILL", arithmetic)
                loaded[arithmetic] = ModelSession.load_file(smollm2)
        return loaded[arithmetic]

    return load


@pytest.fixture
def several(benchmark: Any) -> Timer:
    """A timer that runs the work seven times under pytest-benchmark."""

    def timer(work: Callable[[], object]) -> float:
        benchmark.pedantic(work, rounds=7, warmup_rounds=1)
        return float(benchmark.stats.stats.median)

    return timer
