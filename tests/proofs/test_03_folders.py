"""Folders beside the GGUF files that llama.cpp's converter makes of them: the same bits (see 03.sh)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.base import CompileOptions
from rase.models import build
from rase.models.files import open_model
from rase.testing.programs import assert_same_bits, run_chunks
from rase.testing.tiny import ZOO
from tests.proofs.converted import NAMES

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def folder() -> Path:
    found = os.environ.get("RASE_PROOF_FOLDERS")
    if not found:
        pytest.skip("RASE_PROOF_FOLDERS names no folder: wheelhouse-ci/proofs 03 --only folders makes one")
    return Path(found)


def logits(path: Path, ids: list[int]) -> np.ndarray:
    with open_model(path) as file:
        graph = build(file.metadata, file.tensors)
        program = get_backend("cpu").compile(graph, file.source(), CompileOptions(numerics="portable"))
    with program:
        program.reserve_pages(64)
        return run_chunks(program, ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_has_the_bits_of_the_converted_file(folder: Path, name: str) -> None:
    ids = ZOO[name].ids(90)
    assert_same_bits(logits(folder / name, ids), logits(folder / f"{name}.gguf", ids), name)
