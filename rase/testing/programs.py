"""Runs ids through a program in chosen chunks, roles and pages; compares rows of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rase.backends.base import GENERATED, PROMPT, Batch, Program

__all__ = ["assert_close", "assert_same_bits", "decode_each", "nmse", "run_chunks"]


def run_chunks(
    program: Program,
    ids: Sequence[int],
    chunks: Sequence[int] | None = None,
    *,
    role: int = PROMPT,
    pages: Sequence[int] | None = None,
    start: int = 0,
) -> np.ndarray:
    """Logits (len(ids), vocab_size) of all ids, run in chunks of the given sizes (all at once by default)."""
    groups = len(program.page_bytes)
    if pages is None:
        pages = range(-(-(start + len(ids)) // program.page_tokens))
    rows = []
    done = 0
    for size in chunks or [len(ids)]:
        part = list(ids[done : done + size])
        rows.append(program.run(Batch.of(part, start + done, pages, role, range(len(part)), groups)))
        done += size
    if done != len(ids):
        raise ValueError(f"chunks cover {done} of {len(ids)} ids")
    return np.concatenate(rows)


def decode_each(program: Program, ids: Sequence[int], **arguments: Any) -> np.ndarray:
    """The same, one generated token at a time."""
    return run_chunks(program, ids, [1] * len(ids), role=GENERATED, **arguments)


def assert_close(found: np.ndarray, expected: np.ndarray, gate: float, what: str = "logits") -> None:
    """Fail with the measured NMSE when it is above ``gate`` (or is not a number)."""
    error = nmse(found, expected)
    assert error <= gate, f"{what}: NMSE {error:.3g} is above {gate:.3g}"


def assert_same_bits(found: np.ndarray, expected: np.ndarray, what: str = "logits") -> None:
    """Fail with the first difference unless both arrays hold the same float32 bits."""
    assert found.shape == expected.shape, f"{what}: shapes {found.shape} and {expected.shape}"
    a, b = found.view(np.uint32), expected.view(np.uint32)
    if not np.array_equal(a, b):
        at = tuple(int(index[0]) for index in np.nonzero(a != b))
        count = int((a != b).sum())
        pair = f"{found[at]} and {expected[at]}"
        raise AssertionError(f"{what}: {count} of {a.size} differ, first at {at}: {pair}")


def nmse(found: Any, expected: Any) -> float:
    """Squared error over squared size, summed over everything: the measure of all accuracy gates."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        raise ValueError(f"shapes {found.shape} and {expected.shape}")
    return float(((found - expected) ** 2).sum() / (expected**2).sum())
