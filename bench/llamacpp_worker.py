"""llama.cpp as a worker of ``bench.peers``, by the low-level interface of ``llama-cpp-python``.

Settings: flash attention off ("") and on ("fa"). Runs on any interpreter with NumPy that finds ``llama_cpp``.
"""

from __future__ import annotations

import argparse
import ctypes
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as api
import numpy as np

from bench.worker import Answer, Worker, ids, serve, timed

STEP = 512  # positions of one llama_decode, as rase's: the library splits larger ones into these anyway


@api.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop what the library has to say."""


class LlamaCppWorker(Worker):
    settings = ("", "fa")

    def __init__(self, options: argparse.Namespace) -> None:
        self.path, self.threads = options.model, options.threads
        self.contexts: dict[tuple[str, int, int], Any] = {}  # by setting, positions, sequences
        self.filled: dict[tuple[str, int, int], int] = {}
        self.rows = api.llama_batch_init(STEP, 0, 1)

    def load(self) -> Answer:
        api.llama_log_set(_silent, ctypes.c_void_p(0))
        api.llama_backend_init()

        def load() -> None:
            self.model = api.llama_model_load_from_file(
                self.path.encode(), api.llama_model_default_params()
            )  # fmt: skip

        seconds = timed(load)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {self.path}")
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        return {"seconds": seconds, "version": llama_cpp.__version__}

    def prefill(self, setting: str, tokens: int) -> Answer:
        key = self._context(setting, tokens)
        self._clear(key)
        seconds = timed(lambda: self._fill(key, tokens))
        return {"tokens": tokens, "seconds": seconds, "logits": self._logits(key, -1)[:256].tolist()}

    def decode(self, setting: str, context: int, steps: int) -> Answer:
        key = self._context(setting, context)
        cache = api.llama_get_memory(self.contexts[key])
        if self.filled[key] != context:
            self._clear(key)
            self._fill(key, context)
        following = ids(steps + 1, 1)
        self._decode(key, [(following[0], context, 0, True)])  # warm
        api.llama_memory_seq_rm(cache, 0, context, -1)

        def run() -> None:
            for i in range(steps):
                self._decode(key, [(following[i], context + i, 0, True)])
                self._logits(key, -1).argmax()

        seconds = timed(run)
        api.llama_memory_seq_rm(cache, 0, context, -1)
        return {"tokens": steps, "seconds": seconds}

    def batch(self, setting: str, sequences: int, steps: int) -> Answer:
        key = self._context(setting, 0, sequences, 32 + steps + 1)
        self._clear(key)
        for row in range(sequences):
            self._decode(key, [(token, i, row, False) for i, token in enumerate(ids(32, row))])
        following = [ids(steps + 1, 100 + row) for row in range(sequences)]
        self._decode(key, [(following[row][-1], 32, row, True) for row in range(sequences)])

        def run() -> None:
            for i in range(steps):
                self._decode(key, [(following[row][i], 33 + i, row, True) for row in range(sequences)])
                for row in range(sequences):
                    self._logits(key, row).argmax()

        seconds = timed(run)
        api.llama_free(self.contexts.pop(key))
        return {"tokens": sequences * steps, "seconds": seconds}

    def _context(self, setting: str, tokens: int, sequences: int = 1, room: int = 0) -> tuple[str, int, int]:
        """A context: one sequence with prompts up to ``tokens``, or ``sequences`` with ``room`` each."""
        size = room * sequences if room else 768 if tokens <= 512 else 4096 + 512
        key = (setting, size, sequences)
        if key not in self.contexts:
            options = api.llama_context_default_params()
            options.n_ctx, options.n_batch, options.n_ubatch = size, STEP, STEP
            options.n_seq_max = sequences
            options.n_threads = options.n_threads_batch = self.threads
            on, off = api.LLAMA_FLASH_ATTN_TYPE_ENABLED, api.LLAMA_FLASH_ATTN_TYPE_DISABLED
            options.flash_attn_type = on if setting == "fa" else off
            options.no_perf = True
            context = api.llama_init_from_model(self.model, options)
            if not context:
                raise RuntimeError("llama.cpp cannot make a context")
            self.contexts[key], self.filled[key] = context, 0
        return key

    def _clear(self, key: tuple[str, int, int]) -> None:
        api.llama_memory_clear(api.llama_get_memory(self.contexts[key]), False)
        self.filled[key] = 0

    def _fill(self, key: tuple[str, int, int], tokens: int) -> None:
        prompt = ids(tokens)
        for start in range(0, tokens, STEP):
            piece = prompt[start : start + STEP]
            last = len(piece) - 1 if start + STEP >= tokens else -1
            self._decode(key, [(token, start + i, 0, i == last) for i, token in enumerate(piece)])
        api.llama_synchronize(self.contexts[key])
        self._logits(key, -1)
        self.filled[key] = tokens

    def _decode(self, key: tuple[str, int, int], rows: list[tuple[int, int, int, bool]]) -> None:
        """Rows of (token, position, sequence, whether its logits are wanted)."""
        batch = self.rows
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        if code := api.llama_decode(self.contexts[key], batch):
            raise RuntimeError(f"llama_decode returned {code}")

    def _logits(self, key: tuple[str, int, int], row: int) -> np.ndarray:
        pointer = api.llama_get_logits_ith(self.contexts[key], row)
        return np.ctypeslib.as_array(pointer, (self.vocab_size,))


if __name__ == "__main__":
    serve(LlamaCppWorker)
