"""rase as a worker of ``bench.peers``: programs run by ``Batch``, without sampler and text."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bench.measure import in_chunks
from bench.worker import Answer, Worker, ids, serve, timed
from rase._kernels.limits import tile_times
from rase.backends._limits import tile_mode
from rase.backends.base import GENERATED, PAGE_TOKENS, PROMPT, Batch
from rase.backends.cpu import select_variant

__all__ = ["RaseWorker"]


class RaseWorker(Worker):
    """The default numerics class, or what RASE_PREFILL and RASE_ISA ask for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.model
        self.program: Any = None
        self.length = 0  # positions of the first sequence that are in the cache

    def load(self) -> Answer:
        import rase
        from rase.session import ModelSession

        def load() -> None:
            self.session = ModelSession.load_file(self.path)

        seconds = timed(load)
        self.program = self.session.decoder.program
        return {
            "seconds": seconds, "version": rase.__version__, "class": self.session.numerics_class,
            "isa": self.program.isa, "threads": list(self.program.threads),
        }  # fmt: skip

    def prefill(self, setting: str, tokens: int) -> Answer:
        logits: list[Any] = []
        times = tile_times(select_variant(), self.program.threads[1], 50)  # many: company is no slow mode
        seconds = timed(lambda: logits.append(self._fill(tokens)))
        return {"tokens": tokens, "seconds": seconds, "logits": logits[0][:256].tolist(),
                "machine": tile_mode(times[0]) if times else ""}  # fmt: skip

    def decode(self, setting: str, context: int, steps: int) -> Answer:
        if self.length != context:
            self._fill(context)
        pages = self._pages(1, context + steps)[0]
        following = ids(steps + 1, 1)
        self._step([following[0]], [context], pages[None])  # warm, and overwritten by the next

        def run() -> None:
            for i in range(steps):
                self._step([following[i]], [context + i], pages[None]).argmax()

        return {"tokens": steps, "seconds": timed(run)}

    def batch(self, setting: str, sequences: int, steps: int) -> Answer:
        tables = self._pages(sequences, 32 + steps + 1)
        self.length = 0
        for row, table in enumerate(tables):
            self.program.run(Batch.of(ids(32, row), 0, table, PROMPT, []))
        following = [ids(steps + 1, 100 + row) for row in range(sequences)]
        self._step([row[-1] for row in following], [32] * sequences, tables)

        def run() -> None:
            for i in range(steps):
                self._step([row[i] for row in following], [32 + i] * sequences, tables).argmax(1)

        return {"tokens": sequences * steps, "seconds": timed(run)}

    def _fill(self, tokens: int) -> np.ndarray:
        """Run a prompt of ``tokens`` ids in the first sequence and return its last logits."""
        self._pages(1, tokens + 256)
        self.length = tokens
        return in_chunks(self.program, ids(tokens), self.program.max_batch_tokens)

    def _pages(self, sequences: int, tokens: int) -> np.ndarray:
        each = -(-tokens // PAGE_TOKENS)
        self.program.reserve_pages(each * sequences)
        return np.arange(each * sequences, dtype=np.int32).reshape(sequences, each)

    def _step(self, tokens: list[int], positions: list[int], tables: np.ndarray) -> Any:
        n = len(tokens)
        rows = np.arange(n, dtype=np.int32)
        batch = Batch(
            ids=np.asarray(tokens, np.int32), positions=np.asarray([positions], np.int32), sequences=rows,
            page_tables=np.tile(tables, (len(self.program.page_bytes), 1, 1)),
            roles=np.full(n, GENERATED, np.uint8), logits_rows=rows,
        )  # fmt: skip
        return self.program.run(batch)


if __name__ == "__main__":
    serve(RaseWorker)
