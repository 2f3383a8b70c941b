"""Proof 1 of list 04: 875 requests over five models, two of them twice, with the bits that each has alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rase.testing.tiny import WIDE_QWEN3, ZOO, Tiny
from tests.support import toys
from tests.support.invariance import suite

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]

COUNT = 125  # requests of each model
MODELS: dict[str, Tiny] = {
    "qwen3": WIDE_QWEN3.but(matrices="Q4_K", n_layers=4, n_kv_heads=2),
    "window": ZOO["gemma2"].but(dim=256, hidden=512, head_dim=64, n_layers=4, matrices="Q6_K", window=130),
    "experts": ZOO["qwen3moe"].but(matrices="Q8_0", dim=64, hidden=32, n_layers=3),
    "recurrent": ZOO["qwen35"].but(
        matrices="Q8_0", n_layers=4, extra={**ZOO["qwen35"].extra, "ssm.inner_size": 192}
    ),
}


@pytest.mark.parametrize(
    ("name", "kv"), [*((name, "f16") for name in MODELS), ("qwen3", "q8_0"), ("window", "q8_0")]
)
def test_random_models(name: str, kv: str, tmp_path: Path, figure) -> None:
    wrong = suite(toys.from_tiny(tmp_path, MODELS[name]), COUNT, seed=500, kv=kv)
    figure(f"{name}, {kv}: {COUNT} requests under every circumstance, {len(wrong)} differences")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.real
def test_smollm2(smollm2: Path, figure) -> None:
    wrong = suite(smollm2, COUNT, seed=501, threads=(1, 3))
    figure(f"SmolLM2: {COUNT} requests under every circumstance, {len(wrong)} differences")
    assert not wrong, "\n".join(wrong[:20])
