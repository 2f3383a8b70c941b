"""The q8_0 cache on the cpu backend: the contract, gates against a reference that rounds alike, its size."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from rase.backends.base import CompileOptions
from rase.backends.cpu import CpuBackend
from rase.backends.reference import ReferenceBackend
from rase.testing import ProgramContract
from rase.testing.contract import LENGTH, MODELS
from rase.testing.programs import assert_close, assert_same_bits, decode_each, nmse, run_chunks
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3, WIDE_LLAMA, WIDE_QWEN3, ZOO
from tests.backends.test_cpu import ISAS

# Heads of 16, 32, 64 and 128 elements, of 12 and of 80: blocks that are whole, half, and neither
SHAPES = {
    "llama": TINY_LLAMA, "qwen3": TINY_QWEN3, "wide llama": WIDE_LLAMA, "wide qwen3": WIDE_QWEN3,
    "gemma2": ZOO["gemma2"], "phi3": ZOO["phi3"], "qwen35": ZOO["qwen35"],
    "heads of 12": TINY_LLAMA.but(dim=72, hidden=40, n_heads=6, n_kv_heads=3, head_dim=12, vocab=37),
    "heads of 80": TINY_LLAMA.but(head_dim=80),
}  # fmt: skip
# R9 with float weights, against a reference that rounds K and V alike, and against one that does not round.
ROUNDED_ALIKE, UNROUNDED = 1e-6, 1e-3


class TestQ8Cache(ProgramContract):
    threads = (1, 3)
    options: ClassVar = {"kv": "q8_0"}

    @pytest.fixture(params=["llama window Q8_0", "qwen3 Q4_K"])
    def tiny(self, request):
        return MODELS[request.param]

    def backend(self):
        return CpuBackend()


@pytest.mark.parametrize("name", ["qwen3 Q4_K", "gemma2 Q8_0"])
@pytest.mark.parametrize("prefill", ["int8", "f32"])
def test_instruction_sets_give_the_same_bits(name, prefill, monkeypatch):
    tiny, rows = MODELS[name], {}
    for isa in ISAS:
        monkeypatch.setenv("RASE_ISA", isa)
        with tiny.compile(CpuBackend(), prefill=prefill, threads=1, kv="q8_0") as program:
            ids = tiny.ids(LENGTH)
            prompt = run_chunks(program, ids)
            rows[isa] = np.concatenate([prompt, decode_each(program, ids[:6], start=LENGTH)])
    for isa in ISAS[1:]:
        assert_same_bits(rows[isa], rows[ISAS[0]], f"{isa} and {ISAS[0]}")


@pytest.mark.parametrize("name", SHAPES)
def test_gates(name):
    tiny = SHAPES[name]
    ids = tiny.ids(70)
    with tiny.compile(CpuBackend(), kv="q8_0", numerics="portable", threads=1) as program:
        found = run_chunks(program, ids)
    with tiny.compile(ReferenceBackend(), kv="q8_0") as program:
        assert program.numerics_class.endswith("/kv-q8_0")
        alike = run_chunks(program, ids)
    with tiny.compile(ReferenceBackend()) as program:
        exact = run_chunks(program, ids)
    assert_close(found, alike, ROUNDED_ALIKE, "a cache that rounds alike")
    assert_close(found, exact, UNROUNDED, "a cache that does not round")
    assert nmse(found, exact) > 1e-8, "nothing was rounded"


def test_prompts_in_tiles_are_within_their_gate():
    """2e-4, and the rounding once more: K of bf16 products may lie on the other side of a code's border."""
    tiny = WIDE_QWEN3.but(matrices="F16")
    ids = tiny.ids(LENGTH)
    with tiny.compile(CpuBackend(), kv="q8_0", threads=1) as program:
        found = run_chunks(program, ids)
    with tiny.compile(ReferenceBackend(), kv="q8_0") as program:
        alike = run_chunks(program, ids)
    with tiny.compile(ReferenceBackend()) as program:
        rounding = nmse(alike, run_chunks(program, ids))
    assert rounding < 2e-4
    assert_close(found, alike, 2e-4 + rounding)


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_are_those_of_the_estimate_and_smaller(name):
    tiny, sizes = SHAPES[name], {}
    graph = tiny.graph()
    for kv in ("f16", "q8_0"):
        options = CompileOptions(kv=kv)
        with tiny.compile(CpuBackend(), kv=kv) as program:
            sizes[kv] = program.page_bytes
            estimate = CpuBackend().estimate(graph, tiny.source.tensors, options)
            assert estimate.pages == program.page_bytes
            assert len(program.save_page(0, 0)) == program.page_bytes[0]
    for group, half, q8_0 in zip(graph.caches, sizes["f16"], sizes["q8_0"], strict=True):
        if group.kind == "state":
            assert half == q8_0
        elif group.head_dim % 32 == 0:
            assert 64 * q8_0 == 34 * half
        else:
            assert 34 * half < 64 * q8_0 <= 36 * half


def test_classes_are_told_apart():
    classes = set()
    for kv in ("f16", "q8_0"):
        with TINY_LLAMA.compile(CpuBackend(), kv=kv) as program:
            classes.add(program.numerics_class)
            assert program.numerics_class.endswith(f"/kv-{kv}")
    assert len(classes) == 2


def test_a_page_can_be_saved_and_brought_back():
    ids = WIDE_QWEN3.ids(40)
    with WIDE_QWEN3.compile(CpuBackend(), kv="q8_0") as program:
        expected = run_chunks(program, ids, pages=[5, 6])
        data = program.save_page(0, 5)
        with pytest.raises(ValueError):
            program.restore_page(0, 7, data + b"x", 32)
        program.restore_page(0, 7, data, 32)
        found = run_chunks(program, ids[32:], pages=[7, 8], start=32)
        assert_same_bits(found, expected[32:], "after a page that was brought back")
