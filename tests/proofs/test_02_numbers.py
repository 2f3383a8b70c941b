"""Proofs of list 02 on numbers: SmolLM2 in every class is near the reference, with one set of bits each.

Independence of threads, chunks and batch in every class; equality of instruction sets, and of prefill and
decode, in the portable one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rase.backends.base import GENERATED, Batch, Program
from rase.backends.reference import ReferenceBackend
from rase.errors import BackendUnavailable
from rase.testing.programs import assert_same_bits, decode_each, run_chunks
from tests.support.real import digest_of, digest_with, divergence, load, prose_ids

kernels = pytest.importorskip("rase._kernels.kernels")
ISAS = [name for name, missing in kernels.variants() if missing is None]
TOKENS = 72  # of the prose, for what is compared bit by bit

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(1800)]


def arithmetics() -> list[str]:
    """The prompt arithmetics of this machine."""
    found = []
    for name in ("int8", "f32", "bf16"):
        try:
            from rase.backends.cpu import CpuBackend
            from rase.testing.tiny import TINY_LLAMA

            TINY_LLAMA.compile(CpuBackend(), prefill=name).close()
            found.append(name)
        except BackendUnavailable:
            continue
    return found


CLASSES = arithmetics()


@pytest.fixture(scope="module")
def ids(smollm2: Path) -> list[int]:
    return prose_ids(smollm2)


@pytest.fixture(scope="module")
def prompts(smollm2: Path, ids: list[int]) -> dict[str, Any]:
    """The logits of all ids as one prompt, by prompt arithmetic."""
    rows = {}
    for prefill in CLASSES:
        with load(smollm2, prefill=prefill, threads=2) as program:
            rows[prefill] = run_chunks(program, ids)
    return rows


@pytest.fixture(scope="module")
def answers(smollm2: Path, ids: list[int]) -> Any:
    """The logits of all ids as generated tokens."""
    with load(smollm2, numerics="portable", threads=2) as program:
        return decode_each(program, ids)


@pytest.fixture(scope="module")
def reference(smollm2: Path, ids: list[int]) -> Any:
    with load(smollm2, ReferenceBackend("float64")) as program:
        return run_chunks(program, ids)


def test_divergence_of_decode(answers: Any, reference: Any, figure: Callable[[str], None]) -> None:
    kl, top = divergence(answers, reference)
    figure(f"decode on {len(reference)} tokens: mean KL {kl:.1e} (goal 5e-4), top-1 {top:.1%}")
    assert kl <= 0.0005 and top >= 0.98


@pytest.mark.parametrize("prefill", CLASSES)
def test_divergence_of_prefill(prompts: Any, reference: Any, prefill: str, figure: Callable) -> None:
    kl, top = divergence(prompts[prefill], reference)
    figure(f"{prefill} prefill: mean KL {kl:.1e} (goal 1.5e-3), top-1 {top:.1%}")
    assert kl <= 0.0015 and top >= 0.98


@pytest.mark.parametrize("prefill", CLASSES)
@pytest.mark.parametrize("threads", range(1, 9))
def test_threads(
    smollm2: Path, ids: list[int], prompts: Any, answers: Any, prefill: str, threads: int
) -> None:
    with load(smollm2, prefill=prefill, threads=threads) as program:
        assert_same_bits(run_chunks(program, ids[:TOKENS]), prompts[prefill][:TOKENS], f"{threads} threads")
        if prefill == "int8":
            found = decode_each(program, ids[TOKENS : TOKENS + 8], start=TOKENS)
            assert_same_bits(found, answers[TOKENS : TOKENS + 8], f"{threads} threads, decode")


@pytest.mark.parametrize("prefill", CLASSES)
def test_chunks_of_1_to_64(smollm2: Path, ids: list[int], prompts: Any, prefill: str) -> None:
    with load(smollm2, prefill=prefill) as program:
        for size in range(1, 65):
            whole, rest = divmod(TOKENS, size)
            chunks = [size] * whole + [rest] * (rest > 0)
            found = run_chunks(program, ids[:TOKENS], chunks)
            assert_same_bits(found, prompts[prefill][:TOKENS], f"{prefill}, chunks of {size}")


@pytest.mark.parametrize("prefill", CLASSES)
def test_batches_of_1_to_64(smollm2: Path, ids: list[int], prefill: str, figure: Callable) -> None:
    """Sequence r has r + 1 prompt tokens; each then generates one token, in batches of every size."""
    with load(smollm2, prefill=prefill, tokens=64 * 128) as program:
        tables = np.arange(64 * 4, dtype=np.int32).reshape(64, 4)
        for row in range(64):
            program.run(Batch.of(ids[: row + 1], 0, tables[row], 1, []))
        alone = np.concatenate([step(program, ids, tables, [row]) for row in range(64)])
        for size in range(1, 65):
            rows = list(range(64 - size, 64))
            assert_same_bits(step(program, ids, tables, rows), alone[rows], f"{prefill}, {size} sequences")
    figure(f"{prefill}: same bits for 1 to 64 sequences, chunks of 1 to 64 tokens, 1 to 8 threads")


def step(program: Program, ids: list[int], tables: np.ndarray, rows: list[int]) -> Any:
    """Logits of one generated token of each sequence of ``rows``, written again and again at one place."""
    order = np.arange(len(rows), dtype=np.int32)
    return program.run(
        Batch(
            ids=np.asarray([ids[row + 1] for row in rows], np.int32),
            positions=np.asarray([[row + 1 for row in rows]], np.int32), sequences=order,
            page_tables=tables[None, rows], roles=np.full(len(rows), GENERATED, np.uint8), logits_rows=order,
        )
    )  # fmt: skip


def test_decode_gives_the_bits_of_prefill(prompts: Any, answers: Any) -> None:
    assert_same_bits(answers, prompts["int8"], "token by token and at once")


def test_instruction_sets(smollm2: Path, ids: list[int], figure: Callable[[str], None]) -> None:
    with load(smollm2, numerics="portable") as program:
        expected = {count: digest_of(program, ids[:count]) for count in (24, len(ids))}
    for isa in ISAS:
        count = 24 if isa == "scalar" else len(ids)
        assert digest_with(isa, smollm2, count) == expected[count], f"{isa} over {count} tokens"
    figure(f"portable: same bits on {', '.join(ISAS)}; decode = prefill over {len(ids)} tokens")
