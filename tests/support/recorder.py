"""``Recorder``: a program without a model, whose logits show every token that its pages hold.

After position p its logits are a fixed function of all (id, role, position) that each cache group sees. A
page that is wrong, missing, stale, shared with someone who wrote to it, or computed in another role changes
the answer, and ``expected`` says what is right without any page.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from rase.backends.base import PROMPT, Batch, Program
from rase.engine.config import GenerationConfig
from rase.engine.sampler import History, Sampler

VOCAB, CONTEXT = 50, 400


class Recorder(Program):
    """``windows`` gives the cache groups (None sees everything); ``alike`` ignores roles, as class int8."""

    def __init__(
        self, max_batch_tokens: int = 64, page_bytes: int = 768, windows: tuple[int | None, ...] = (None,),
        alike: bool = True,
    ) -> None:  # fmt: skip
        caches = tuple(SimpleNamespace(kind="full", window=window) for window in windows)
        self.graph = SimpleNamespace(
            vocab_size=VOCAB, context_length=CONTEXT, caches=caches, whole_input=False
        )  # fmt: skip
        self.max_batch_tokens, self.page_bytes = max_batch_tokens, (page_bytes,) * len(windows)
        self.reserved_pages = (0,) * len(windows)
        self.numerics_class, self.one_arithmetic = "recorder", alike
        self.store = [np.zeros((0, self.page_tokens, 3), np.int64) for _ in windows]  # id, role, position
        self.batches: list[Batch] = []
        self.fail: BaseException | None = None
        self.pause_s = 0.0  # of each step, without the GIL, as a real one is

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        for one in range(len(self.store)) if group is None else (group,):
            more = np.full((max(0, n - len(self.store[one])), self.page_tokens, 3), -1000, np.int64)
            self.store[one] = np.concatenate([self.store[one], more])
        self.reserved_pages = tuple(len(store) for store in self.store)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self.store[group][target] = self.store[group][source]

    def save_page(self, group: int, page: int) -> bytes:
        return self.store[group][page].tobytes()

    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        self.store[group][page] = np.frombuffer(data, np.int64).reshape(self.page_tokens, 3)

    def run(self, batch: Batch) -> np.ndarray:
        batch.check(self)
        self.batches.append(batch)
        if self.pause_s:
            time.sleep(self.pause_s)
        for at, position in enumerate(batch.positions[0]):
            role = 0 if self.one_arithmetic else batch.roles[at]
            for group, table in enumerate(batch.page_tables):
                page = table[batch.sequences[at], position // 32]
                self.store[group][page, position % 32] = (batch.ids[at], role, position)
        if self.fail is not None:
            raise self.fail
        rows = [self._logits(batch, row) for row in batch.logits_rows]
        return np.array(rows, np.float32).reshape(-1, VOCAB)

    def _logits(self, batch: Batch, row: int) -> np.ndarray:
        last = int(batch.positions[0, row])
        seen = []
        for group, cache in enumerate(self.graph.caches):
            positions = np.arange(0 if cache.window is None else max(0, last - cache.window + 1), last + 1)
            pages = batch.page_tables[group, batch.sequences[row], positions // 32]
            stored = self.store[group][pages, positions % 32]
            assert (stored[:, 2] == positions).all(), "a page holds other positions"
            seen.append(stored)
        return logits_of(seen)

    def close(self) -> None: ...


def logits_of(seen: Sequence[np.ndarray]) -> np.ndarray:
    """Logits ``(VOCAB,)`` from what each cache group sees, rows of (id, role, position)."""
    mixed = 0
    for group, stored in enumerate(seen):
        id, role, position = stored.T
        mixed += int(((id + 1) * (position + 3) * (group + 1) * 31 + role * (position + 7) * 17).sum())
    rng = np.random.default_rng(mixed)
    return rng.normal(size=VOCAB).astype(np.float32) * 3


def expected_logits(program: Recorder, tokens: Sequence[int], n_prompt: int) -> np.ndarray:
    """Logits after ``tokens``, the first ``n_prompt`` of which are a prompt, without any page."""
    whole = np.array(
        [
            (id, PROMPT if not program.one_arithmetic and at < n_prompt else 0, at)
            for at, id in enumerate(tokens)
        ]
    ).reshape(-1, 3)
    windows = [cache.window for cache in program.graph.caches]
    return logits_of([whole if window is None else whole[-window:] for window in windows])


def expected(
    program: Recorder, prompt: Sequence[int], config: GenerationConfig, choice: int = 0
) -> list[int]:
    """The answer that a request must have, whatever happens around it."""
    tokens, sampler = list(prompt), Sampler(config, VOCAB, choice)
    history = History(tokens, VOCAB) if config.penalised else None
    while len(tokens) < min(len(prompt) + config.max_tokens, CONTEXT):
        row = expected_logits(program, tokens, len(prompt))
        id = sampler.sample(row, len(tokens), history).id
        if id in config.stop_tokens:
            break
        tokens.append(id)
        if history is not None:
            history.push(id)
    return tokens[len(prompt) :]
