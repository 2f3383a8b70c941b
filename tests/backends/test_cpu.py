"""The cpu backend keeps the contract bit by bit: on every instruction set, whatever the host's float mode."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import ClassVar

import numpy as np
import pytest

from rase.backends._lowering import Lowering
from rase.backends._threads import physical_cores
from rase.backends.base import GENERATED, Batch, CompileOptions
from rase.backends.cpu import CpuBackend, select_variant
from rase.errors import BackendError, BackendUnavailable, InvalidSetting
from rase.testing import BackendContract, ProgramContract
from rase.testing.contract import LENGTH, MODELS
from rase.testing.ops import case_rows
from rase.testing.programs import assert_close, assert_same_bits, decode_each, run_chunks
from rase.testing.tiny import TINY_LLAMA, WIDE_QWEN3
from rase.testing.weights import MemoryWeights

kernels = pytest.importorskip("rase._kernels.kernels")
ISAS = [name for name, missing in kernels.variants() if missing is None]


class TestCpu(BackendContract):
    refused = ("attention with sinks",)

    def backend(self):
        return CpuBackend()


class TestFloat32Prefill(ProgramContract):
    """The hybrid of rule R3: prompt tokens in float32. Decode and prefill differ; everything else holds."""

    numerics = ("fast",)
    options: ClassVar = {"prefill": "f32"}

    def backend(self):
        return CpuBackend()

    def test_float_weights_have_one_arithmetic(self):
        ids = TINY_LLAMA.ids(70)
        with self.compile(TINY_LLAMA) as program:
            self.same(decode_each(program, ids), run_chunks(program, ids), "decode and prefill")


@pytest.mark.parametrize("name", ["linear of a linear", "linear of experts"])
def test_a_matrix_waits_for_what_it_reads(name):
    """Without an op between two matrices workers still meet: without that, one program in ten is wrong."""
    expected = case_rows(CpuBackend(), name, {"threads": 1})
    for _ in range(100):
        assert_same_bits(case_rows(CpuBackend(), name, {"threads": 2}), expected, name)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prefill", ["int8", "f32"])
def test_instruction_sets_give_the_same_bits(name, prefill, monkeypatch):
    tiny, rows = MODELS[name], {}
    for isa in ISAS:
        monkeypatch.setenv("RASE_ISA", isa)
        with tiny.compile(CpuBackend(), prefill=prefill, threads=1) as program:
            assert program.isa == isa
            ids = tiny.ids(LENGTH)
            prompt = run_chunks(program, ids)
            rows[isa] = np.concatenate([prompt, decode_each(program, ids[:6], start=LENGTH)])
    for isa in ISAS[1:]:
        assert_same_bits(rows[isa], rows[ISAS[0]], f"{isa} and {ISAS[0]}")


@pytest.mark.parametrize("window", [None, 300])
def test_how_attention_is_shared_out_does_not_matter(window):
    """A token at a long context: chunks of 256 positions go to several workers, whose parts are merged."""
    tiny = TINY_LLAMA.but(window=window, context=1500)
    ids, rows = tiny.ids(1301), {}
    for threads in (1, 2, 3, 4):
        with tiny.compile(
            CpuBackend(), numerics="portable", threads=threads, max_batch_tokens=1301
        ) as program:
            prompt = (
                run_chunks(program, ids) if threads == 1 else run_chunks(program, ids, [500, 796, 3, 1, 1])
            )
            alone = decode_each(program, ids[1290:], start=1290)
            drafts = run_chunks(program, ids[1290:], [4, 7], start=1290, role=0)
            rows[threads] = np.concatenate([prompt, alone, drafts])
            assert_same_bits(alone, prompt[1290:], f"decode and prefill, {threads} threads")
        assert_same_bits(rows[threads], rows[1], f"{threads} threads and one")


@pytest.mark.parametrize("window", [None, 300])
def test_how_attention_is_shared_out_does_not_matter_in_the_fast_class(window):
    """The same for prompts and answers whose arithmetic differs: bf16 tiles where this machine has them."""
    tiny = TINY_LLAMA.but(window=window, context=1500)
    ids, rows = tiny.ids(1301), {}
    for threads, chunks in ((1, [1301]), (2, [500, 796, 3, 1, 1]), (3, [1, 1300])):
        with tiny.compile(CpuBackend(), threads=threads, max_batch_tokens=1301) as program:
            rows[threads] = np.concatenate(
                [run_chunks(program, ids, chunks), decode_each(program, ids[1290:], start=1290)]
            )
        assert_same_bits(rows[threads], rows[1], f"{threads} threads and one")


@pytest.mark.parametrize("state", [0x9FC0, 0x7F80, 0x3F80], ids=["flush to zero", "toward zero", "down"])
def test_the_callers_float_environment_does_not_matter_and_is_kept(state):
    tiny = WIDE_QWEN3.but(matrices="Q4_K")
    ids = tiny.ids(40)
    with tiny.compile(CpuBackend()) as program:
        expected = run_chunks(program, ids)
    before = kernels.float_environment()
    kernels.set_float_environment(state)
    try:
        with tiny.compile(CpuBackend()) as program:  # loading under the same environment, too
            found = run_chunks(program, ids)
        kept = kernels.float_environment()
    finally:
        kernels.set_float_environment(before)
    assert kept & 0xFFC0 == state & 0xFFC0
    assert_same_bits(found, expected, f"MXCSR {state:#x}")


def test_a_forced_instruction_set_that_is_unknown_is_refused(monkeypatch):
    monkeypatch.setenv("RASE_ISA", "mmx")
    with pytest.raises(BackendUnavailable, match=r"RASE_ISA=mmx.*expected one of scalar"):
        select_variant()


def test_bf16_prefill_needs_tiles(monkeypatch):
    monkeypatch.setenv("RASE_ISA", "scalar")
    with pytest.raises(BackendUnavailable, match="AMX"):
        TINY_LLAMA.compile(CpuBackend(), prefill="bf16")


def test_prompts_take_bf16_where_the_processor_has_tiles_unless_portable():
    tiles = CpuBackend().variant.has_tiles
    for numerics, expected in (("fast", "bf16" if tiles else "int8"), ("portable", "int8")):
        with TINY_LLAMA.compile(CpuBackend(), numerics=numerics) as program:
            assert program.numerics_class.split("/")[1] == expected


def test_portable_refuses_another_prompt_arithmetic():
    with pytest.raises(InvalidSetting, match="portable"):
        TINY_LLAMA.compile(CpuBackend(), prefill="f32", numerics="portable")


def test_numerics_classes_are_told_apart():
    classes = set()
    for options in ({"prefill": "int8"}, {"numerics": "portable"}, {"prefill": "f32"}):
        with TINY_LLAMA.compile(CpuBackend(), **options) as program:
            classes.add(program.numerics_class)
    assert len(classes) == 2, f"int8 and portable are one class, f32 another: {classes}"


def test_rows_keep_their_numbers_while_anyone_holds_them():
    with TINY_LLAMA.compile(CpuBackend()) as program:
        program.reserve_pages(4)
        kept, copies = [], []
        for start in range(8):
            rows = program.run(Batch.of([start + 1], start, [0, 1, 2, 3], GENERATED))
            kept.append(rows[0, 3:])  # a view of a view
            copies.append(rows[0, 3:].copy())
            del rows
        assert_same_bits(np.array(kept), np.array(copies), "rows that were kept")
        address = kept.pop().ctypes.data
        again = program.run(Batch.of([9], 8, [0, 1, 2, 3], GENERATED))
        assert again[0, 3:].ctypes.data == address, "memory that nobody holds is used again"


def test_a_program_leaves_the_peaks_of_its_logits():
    for threads in (1, 3):
        with TINY_LLAMA.but(vocab=900).compile(CpuBackend(), threads=threads) as program:
            program.reserve_pages(1)
            rows = program.run(Batch.of([1, 2, 3], 0, [0], GENERATED, logits_rows=[0, 2]))
            blocks = rows[:, :768].reshape(2, 3, 16, 16)
            assert_same_bits(
                program.peaks_of(rows), blocks.max(axis=2).reshape(2, 48), f"peaks, {threads} threads"
            )


def test_two_callers_at_once_are_refused_and_nothing_breaks():
    with TINY_LLAMA.compile(CpuBackend()) as program:
        ids = TINY_LLAMA.ids(LENGTH)
        expected = run_chunks(program, ids)
        outcomes = []

        def call():
            try:
                outcomes.append(run_chunks(program, ids))
            except BackendError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            if isinstance(outcome, BackendError):
                assert "already running" in str(outcome)
            else:
                assert_same_bits(outcome, expected, "beside refused callers")


def _in_child(program, queue):
    try:
        run_chunks(program, [1, 2, 3])
        queue.put("ran")
    except BackendError as error:
        queue.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads is what is tested
def test_a_program_says_in_a_forked_child_that_it_cannot_run():
    context = multiprocessing.get_context("fork")
    with TINY_LLAMA.compile(CpuBackend(), threads=2) as program:
        expected = run_chunks(program, [1, 2, 3])
        queue = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(program, queue))
        child.start()
        child.join(10)
        assert child.exitcode == 0, "the child hangs or died"
        assert "fork" in queue.get()
        assert_same_bits(run_chunks(program, [1, 2, 3]), expected, "in the parent")


@pytest.mark.parametrize(
    "name", ["blk.0.attn_norm.weight", "blk.0.ffn_down.weight", "output.weight", "blk.1.attn_k.weight"]
)
def test_a_nan_weight_reaches_the_logits(name):
    tiny = TINY_LLAMA
    tensors = {each: (raw, tiny.source.tensors[each].shape, "F32") for each, raw in tiny.source.raw.items()}
    damaged = np.frombuffer(tensors[name][0], np.float32).copy()
    damaged[0] = np.nan
    tensors[name] = (damaged.tobytes(), *tensors[name][1:])
    with CpuBackend().compile(tiny.graph(), MemoryWeights(tensors), CompileOptions()) as program:
        program.reserve_pages(1)
        assert np.isnan(run_chunks(program, tiny.ids(5))[-1]).any(), "NaN vanished"


def test_physical_cores_count_siblings_once(tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == min(2, physical_cores(set(range(64)), tmp_path / "none"))
    assert physical_cores({0, 2}, tmp_path) == 1


PROFILE = """
import json, os, sys
from rase.testing.tiny import TINY_LLAMA
from rase.testing.programs import decode_each, run_chunks
from rase.backends.cpu import CpuBackend
from rase import profiling
with TINY_LLAMA.compile(CpuBackend(), prefill="f32") as program:
    rows = run_chunks(program, TINY_LLAMA.ids(300)).tobytes()
    rows += decode_each(program, [1, 2, 3], start=300).tobytes()
import hashlib
print(hashlib.sha256(rows).hexdigest(), json.dumps(profiling.snapshot()))
"""


def test_profiling_counts_and_changes_nothing():
    outputs = []
    for flag in ("0", "1"):
        run = subprocess.run([sys.executable, "-c", PROFILE], capture_output=True, text=True, check=True,
                             env={**os.environ, "RASE_PROFILE": flag}, timeout=60)  # fmt: skip
        digest, counters = run.stdout.split(" ", 1)
        outputs.append((digest, json.loads(counters)))
    (off, zeros), (on, counts) = outputs
    assert off == on
    assert set(zeros.values()) == {0}
    assert counts["prefill_calls"] == 1 and counts["prefill_tokens"] == 300 and counts["decode_steps"] == 3
    parts = counts["gemm_dequant_ns"] + counts["gemm_matmul_ns"] + counts["attn_blocked_ns"]
    assert 0 < parts < counts["prefill_forward_ns"]
    assert 0 < counts["decode_matvec_ns"] + counts["decode_attn_ns"] < counts["decode_forward_ns"]


def test_float_weights_meet_the_gate_of_the_rounding_reference():
    from rase.backends.reference import ReferenceBackend

    ids = TINY_LLAMA.ids(LENGTH)
    with (
        TINY_LLAMA.compile(CpuBackend(), numerics="portable") as program,
        TINY_LLAMA.compile(CpuBackend()) as fast,
        TINY_LLAMA.compile(ReferenceBackend("float16")) as reference,
    ):
        expected = run_chunks(reference, ids)
        assert_close(run_chunks(program, ids), expected, 1e-6)
        assert_close(run_chunks(fast, ids), expected, 2e-4)  # bf16 attention where this machine has it


def test_lowering_takes_time_in_proportion_to_the_layers():
    """Looking for the readers of a value in all ops made 500 layers take half a minute."""

    def seconds(n_layers: int) -> float:
        graph, times = TINY_LLAMA.but(n_layers=n_layers).graph(), []
        for _ in range(3):
            start = time.process_time()
            Lowering(
                graph,
                dict.fromkeys(graph.weights, 0),
                lambda format: "f32",
                lambda stride: 64 * stride,
                1,
                "f32",
            )
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(400) < 10 * seconds(100), "16 times would be a square"
