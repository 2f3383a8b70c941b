"""Same request, same bits, whatever happens around it; and a check of the check: planted faults are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from rase.testing.tiny import WIDE_LLAMA, WIDE_QWEN3, ZOO, Tiny
from tests.support import toys
from tests.support.faults import FAULTS, Planted
from tests.support.invariance import suite

MODELS: dict[str, Tiny] = {
    "qwen3 of Q4_K": WIDE_QWEN3.but(matrices="Q4_K"),
    "sliding window of Q6_K": ZOO["gemma2"].but(
        dim=256, hidden=256, head_dim=64, n_layers=2, matrices="Q6_K", window=100
    ),
    "experts": ZOO["qwen3moe"].but(matrices="Q8_0", dim=64, hidden=32),
    "recurrent": ZOO["qwen35"].but(
        matrices="Q8_0", n_layers=4, extra={**ZOO["qwen35"].extra, "ssm.inner_size": 192}
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_changes_an_answer(name: str, tmp_path: Path) -> None:
    path = toys.from_tiny(tmp_path, MODELS[name])
    assert suite(path, 20 if "qwen3" in name else 12, seed=len(name)) == []


def test_nothing_changes_an_answer_from_a_smaller_cache(tmp_path: Path) -> None:
    path = toys.from_tiny(tmp_path, MODELS["sliding window of Q6_K"])
    assert suite(path, 10, seed=5, threads=(3,), kv="q8_0") == []


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_planted_faults_are_caught(fault: str | None, tmp_path: Path) -> None:
    path = toys.from_tiny(tmp_path, WIDE_LLAMA.but(n_layers=1))
    wrong = suite(path, 8, 3, lambda program, threads: Planted(program, threads, fault), threads=(3,))
    assert bool(wrong) == (fault is not None), wrong
