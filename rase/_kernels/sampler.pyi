"""The sampling kernel; ``rase.engine.sampler`` is its public side and documents the rules."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

class History:
    """The ids of one sequence as the penalties see them; ids outside 0..vocab_size-1 count nowhere."""

    def __new__(cls, prompt: NDArray[np.int32], vocab_size: int) -> Self: ...
    def push(self, id: int) -> None:
        """Count one generated id."""

class Row:
    """Logits ``(vocab,)`` to choose a token from, and what ``Program.peaks_of`` says of them.

    Raises ``ValueError`` for arrays that are not contiguous float32.
    """

    logits: NDArray[np.float32]

    def __init__(self, logits: NDArray[np.float32], peaks: NDArray[np.float32] | None = None) -> None: ...
    @staticmethod
    def all_of(logits: NDArray[np.float32], peaks: NDArray[np.float32] | None = None) -> list[Row]:
        """The rows ``(m, vocab)`` that a program has given; no array is made for each."""

class RowSampler:
    """Parameters and scratch of one answer over ``n`` ids. Not thread-safe; holds no random state."""

    def __init__(
        self,
        n: int,
        top_k: int,
        temperature: float,
        top_p: float,
        min_p: float,
        repetition: float,
        presence: float,
        frequency: float,
        seed: int,
        choice: int,
        greedy: bool,
        bias_ids: NDArray[np.int32],
        bias_values: NDArray[np.float64],
    ) -> None: ...
    def pick(self, row: Row, position: int, history: History | None = None) -> int:
        """The id chosen for ``position``, or -1 for NaN, -2 for infinity in the row."""

    def logprobs(self, row: Row, chosen: int, alternatives: int) -> tuple[float, list[tuple[int, float]]]:
        """Log-probability of ``chosen`` and the best ids with theirs, under the model's own distribution."""

def peaks(variant: Any, row: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """What a program of ``variant`` leaves beside a row of logits: 16 numbers for each whole block of 256."""

def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """The four 32-bit words of Philox4x32-10, for its published test vectors."""

def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1) that decides the token at ``position`` of answer ``choice``."""
