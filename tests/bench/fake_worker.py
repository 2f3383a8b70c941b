"""An engine for tests of the contest: it answers what its environment says."""

from __future__ import annotations

import os

from bench.worker import Answer, Worker, serve

SPEED = float(os.environ["FAKE_SPEED"])


class FakeWorker(Worker):
    settings = ("", "fa")

    def load(self) -> Answer:
        print("noise on stdout that is no answer")
        return {"seconds": 1 / SPEED, "version": "1"}

    def prefill(self, setting: str, tokens: int) -> Answer:
        if os.environ.get("FAKE_FAULT"):
            raise ValueError("no memory for a context")
        sign = -1 if os.environ.get("FAKE_LOGITS") else 1
        return {"tokens": tokens, "seconds": tokens / SPEED, "logits": [sign * i for i in range(8)]}

    def decode(self, setting: str, context: int, steps: int) -> Answer:
        return {"tokens": steps, "seconds": steps / (SPEED * (1 if setting == "fa" else 3))}

    def batch(self, setting: str, sequences: int, steps: int) -> Answer:
        return {"tokens": sequences * steps, "seconds": 1.0}


if __name__ == "__main__":
    serve(lambda options: FakeWorker())
