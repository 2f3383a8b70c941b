"""Logits of a real model file on the prose of tests/data, here and in a process per instruction set.

python -m tests.support.real FILE COUNT     prints the SHA-256 of the first COUNT tokens' logits
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rase.backends.base import Backend, CompileOptions, Program
from rase.backends.cpu import CpuBackend
from rase.gguf.reader import GgufFile
from rase.gguf.stream import HashedTensors
from rase.models import build
from rase.testing.programs import decode_each, run_chunks
from rase.text.tokenizer import LocalTokenizer

ROOT = Path(__file__).parents[2]
PROSE = ROOT / "tests" / "data" / "prose.txt"


def prose_ids(path: Path, count: int | None = None) -> list[int]:
    """The first ``count`` ids (all by default) of the prose in the vocabulary of the file."""
    with GgufFile.open(path) as file:
        return LocalTokenizer.from_gguf(file.metadata).encode(PROSE.read_text("utf-8"), True)[:count]


def load(path: Path, backend: Backend | None = None, *, tokens: int = 512, **options: object) -> Program:
    """The model compiled by ``backend`` (cpu by default), with pages for ``tokens`` tokens."""
    with GgufFile.open(path) as file:
        graph = build(file.metadata, file.tensors)
        program = (backend or CpuBackend()).compile(graph, HashedTensors(file), CompileOptions(**options))
    program.reserve_pages(-(-tokens // program.page_tokens))
    return program


def divergence(found: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Mean KL divergence of ``found`` from ``reference`` per token, in nats; share of equal best ids."""
    p, q = _log_softmax(reference), _log_softmax(found)
    top = float((p.argmax(1) == q.argmax(1)).mean())
    return float((np.exp(p) * (p - q)).sum(1).mean()), top


def digest(rows: np.ndarray) -> str:
    """SHA-256 of float32 logits."""
    return hashlib.sha256(np.ascontiguousarray(rows, np.float32).tobytes()).hexdigest()


def digest_with(isa: str, path: Path, count: int) -> str:
    """What ``python -m tests.support.real`` prints under ``RASE_ISA=isa``: prefill, then decode behind it."""
    command = [sys.executable, "-m", "tests.support.real", str(path), str(count)]
    environment = {**os.environ, "RASE_ISA": isa, "RASE_NUMERICS": "portable"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{isa}: {done.stderr}")
    return done.stdout.strip()


def digest_of(program: Program, ids: Sequence[int]) -> str:
    """Of the logits of a prompt of all but two ids, and of these two decoded."""
    prompt = run_chunks(program, ids[:-2])
    return digest(np.concatenate([prompt, decode_each(program, ids[-2:], start=len(ids) - 2)]))


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows.astype(np.float64) - rows.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


if __name__ == "__main__":
    file, tokens = Path(sys.argv[1]), int(sys.argv[2])
    print(digest_of(load(file, numerics=os.environ["RASE_NUMERICS"]), prose_ids(file, tokens)))
