"""all-MiniLM-L6-v2 beside its own runtime: the same cosine similarities (03.sh makes the files)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.proofs.minilm import TEXTS

pytestmark = pytest.mark.proof
CLOSE = 1e-3


@pytest.fixture(scope="module")
def folder() -> Path:
    found = os.environ.get("RASE_PROOF_MINILM")
    if not found:
        pytest.skip("RASE_PROOF_MINILM names no folder: wheelhouse-ci/proofs 03 --only 3 makes one")
    return Path(found)


@pytest.mark.parametrize("prefill", ["auto", "f32"])
def test_cosine_similarities_are_those_of_its_own_runtime(folder, prefill, monkeypatch, figure):
    import rase

    monkeypatch.setenv("RASE_PREFILL", prefill)
    expected = np.load(folder / "expected.npy").astype(np.float64)
    with rase.load(folder / "minilm.gguf") as model:
        found = np.asarray(model.embed(list(TEXTS)), np.float64)
        alone = [model.embed(text)[0] for text in TEXTS]
        kind = model.embedder.numerics_class
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6
    assert [row.tobytes() for row in alone] == [row.astype(np.float32).tobytes() for row in found]
    error = np.abs(found @ found.T - expected @ expected.T).max()
    apart = 1 - (found * expected).sum(1).min()
    figure(f"{kind}: cosines within {error:.1e} of its own runtime's, 1 - cosine with it {apart:.1e}")
    assert error <= CLOSE
