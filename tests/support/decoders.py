"""Small ``TokenDecoder``s with known answers, for tests of whatever stands above a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rase.engine.generation import TokenDecoder


class FixedLogits(TokenDecoder):
    """Gives the same logits after everything: the case LOGITS(L) without a model."""

    def __init__(self, logits: Sequence[float], vocab_size: int | None = None) -> None:
        self.logits = np.asarray(logits, np.float32)
        self.vocab_size = vocab_size
        self.calls: list[object] = []  # prompts as lists, decoded ids as ints

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        self.calls.append(list(ids))
        return self.logits

    def decode(self, id: int) -> np.ndarray:
        self.calls.append(id)
        return self.logits


class Chain(TokenDecoder):
    """Each token of ``chain`` leads to the next, the last one to ``end``: the case CHAIN without a model."""

    def __init__(
        self, chain: Sequence[int], vocab_size: int = 16, end: int = 0, context_length: int | None = None
    ) -> None:
        self.next = dict(zip(chain, [*chain[1:], end], strict=True))
        self.rows, self.end, self.context_length = vocab_size, end, context_length
        self.length = 0
        self.on_step: Callable[[], object] = lambda: None  # a test may raise or sleep here

    def _logits(self, id: int) -> np.ndarray:
        self.on_step()
        logits = np.zeros(self.rows, np.float32)
        logits[self.next.get(id, self.end)] = 10.0
        return logits

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        self.length = len(ids)
        return self._logits(ids[-1])

    def decode(self, id: int) -> np.ndarray:
        self.length += 1
        return self._logits(id)

    def eos_token(self) -> int | None:
        return self.end
