"""OpenVINO GenAI as a worker of ``bench.peers``: prefill and decode, by the metrics of its own pipeline.

It converts the file at load and computes in other arithmetic (bf16 where the processor has it, 8-bit keys and
values): a comparison of speed alone. Runs on any interpreter that has ``openvino_genai``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.worker import Answer, Worker, ids, serve, timed

__all__ = ["OpenVinoWorker"]


class OpenVinoWorker(Worker):
    """Prompts are token ids, as for the others; logits are not to be had."""

    can = ("prefill", "decode")

    def __init__(self, options: argparse.Namespace) -> None:
        self.path, self.threads = options.model, options.threads
        self.pipe: Any = None
        self.prompts = 0

    def load(self) -> Answer:
        def load() -> None:
            self.pipe = openvino_genai.LLMPipeline(self.path, "CPU", INFERENCE_NUM_THREADS=self.threads)

        return {"seconds": timed(load), "version": openvino_genai.__version__}

    def prefill(self, setting: str, tokens: int) -> Answer:
        return {"tokens": tokens, "seconds": self._generate(tokens, 2).get_ttft().mean / 1000}

    def decode(self, setting: str, context: int, steps: int) -> Answer:
        found = self._generate(context, steps + 1)
        return {"tokens": steps, "seconds": steps * found.get_tpot().mean / 1000}

    def batch(self, setting: str, sequences: int, steps: int) -> Answer:
        raise NotImplementedError("OpenVINO GenAI's pipeline of one sequence is measured, not its batches")

    def _generate(self, context: int, count: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        self.prompts += 1  # each another one: the pipeline keeps the keys and values of what it has seen
        prompt = np.asarray([ids(context, self.prompts)], np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(prompt), openvino.Tensor(np.ones_like(prompt))
        )  # fmt: skip
        return self.pipe.generate(inputs, config).perf_metrics


if __name__ == "__main__":
    serve(OpenVinoWorker)
