"""What the proofs of an issue share: figures for the table that wheelhouse-ci/proofs prints."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture
def figure() -> Callable[[str], None]:
    """``figure(text)`` prints a measured figure, and writes it to the file that RASE_PROOF_FIGURES names."""

    def write(text: str) -> None:
        print(text)
        if path := os.environ.get("RASE_PROOF_FIGURES"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(text + "\n")

    return write
