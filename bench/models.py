"""The model files that benches and proofs run on, made once and kept below the user's cache."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from bench.builds import folder
from bench.synth import SHAPES, synthesize
from bench.vocabulary import generated

__all__ = ["synthetic"]

REVISION = 1  # of what the generator draws: a change makes new files


def synthetic(name: str) -> Path:
    """The file of random weights with the shape ``name`` of ``bench.synth``, with a vocabulary made up."""
    shape, path = SHAPES[name], folder() / f"{name}-{REVISION}.gguf"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            synthesize(shape, path, generated(shape.vocab_size))
    return path
