"""Prompt matrices computed elsewhere, by a GPU that NumPy plays: what moves, what stays, what is lost."""

from __future__ import annotations

import numpy as np
import pytest

import rase
from rase.backends import _wgpu_device as device
from rase.backends import _wgpu_program
from rase.backends import wgpu as backend
from rase.backends.cpu import CpuBackend
from rase.backends.wgpu import WgpuBackend
from rase.errors import DeviceLost
from rase.gguf.dequantize import dequantize
from rase.testing import ProgramContract
from rase.testing.contract import MODELS
from rase.testing.programs import assert_close, assert_same_bits, decode_each, run_chunks
from rase.testing.tiny import TINY_LLAMA, WIDE_QWEN3, ZOO

TINY = WIDE_QWEN3.but(matrices="Q4_K")


class PlayedGpu:
    """Takes Q4_K and Q8_0; ``calls`` counts products, and ``lost_in`` is the one that fails."""

    name, shares_memory = "played", True
    calls, lost_in = 0, -1

    def takes(self, info):
        return len(info.shape) == 2 and info.format.name in ("Q4_K", "Q8_0")

    def settle(self): ...


class PlayedMatrix:
    def __init__(self, gpu, info):
        self.info, self.outputs, self.depth = info, *info.shape
        self.raw, self.weights = bytearray(info.nbytes), None

    def write(self, gpu, start, data):
        self.raw[start : start + len(data)] = data


class PlayedProducts:
    def __init__(self, gpu, max_rows, depth, outputs):
        self.gpu, self.most = gpu, outputs

    def run(self, x, matrices):
        assert x.dtype == np.float32 and sum(matrix.outputs for matrix in matrices) <= self.most
        found = []
        for matrix in matrices:
            self.gpu.calls += 1
            if self.gpu.calls == self.gpu.lost_in:
                raise device.GpuFailed("GPU 'played'", found="its end")
            if matrix.weights is None:
                info = matrix.info
                matrix.weights = dequantize(info.format, bytes(matrix.raw), info.shape).astype(np.float64)
            rows = [(matrix.weights * row).sum(1) for row in x]  # each by itself: company changes no bit
            found.append(np.array(rows, np.float32).reshape(len(x), -1))
        return found


@pytest.fixture
def gpu(monkeypatch):
    state, played = device._State(), PlayedGpu()
    state.found, state.searched = played, True
    monkeypatch.setattr(device, "_state", state)
    monkeypatch.setattr(backend.device, "GpuMatrix", PlayedMatrix)
    monkeypatch.setattr(_wgpu_program, "Products", PlayedProducts)
    return played


class TestOffload(ProgramContract):
    @pytest.fixture(autouse=True)
    def played(self, gpu): ...

    @pytest.fixture(params=["qwen3 Q4_K", "llama window Q8_0"])
    def tiny(self, request):
        return MODELS[request.param].but(n_layers=1)

    def backend(self):
        return WgpuBackend()


@pytest.mark.parametrize(
    ("tiny", "count"),
    [
        (TINY, 14),
        (TINY_LLAMA.but(matrices="Q8_0"), 14),
        (ZOO["qwen2"].but(matrices="Q8_0"), 14),  # with biases
        (ZOO["qwen3moe"].but(matrices="Q8_0"), 8),  # experts stay
        (ZOO["gemma2"].but(dim=64, matrices="Q8_0"), 21),
        (WIDE_QWEN3.but(matrices="Q6_K"), 0),  # no shader here
    ],
)
def test_prompts_are_near_and_answers_are_the_cpus(gpu, tiny, count):
    ids = tiny.ids(60)
    with tiny.compile(WgpuBackend(), threads=2) as program, tiny.compile(CpuBackend(), threads=2) as cpu:
        assert len(getattr(program, "offloaded", ())) == count
        expected = run_chunks(cpu, ids)
        found = run_chunks(program, ids, [17, 43])
        assert gpu.calls == 2 * count
        assert_close(found, expected, 1e-3)
        assert np.array_equal(found, expected) == (not count)
        assert_same_bits(decode_each(program, ids[:8]), decode_each(cpu, ids[:8]), "generated")
        assert gpu.calls == 2 * count, "generated tokens never leave the CPU"


@pytest.mark.parametrize("options", [{"numerics": "portable"}, {"prefill": "f32"}, {"prefill": "int8"}])
def test_a_promised_arithmetic_stays_on_the_cpu(gpu, options):
    with TINY.compile(WgpuBackend(), **options) as program, TINY.compile(CpuBackend(), **options) as cpu:
        assert program.numerics_class == cpu.numerics_class
        assert_same_bits(run_chunks(program, TINY.ids(40)), run_chunks(cpu, TINY.ids(40)))


@pytest.mark.parametrize("product", [1, 9, 14])
def test_after_a_loss_the_program_is_the_cpus(gpu, product):
    ids, options = TINY.ids(80), {"threads": 2}
    with TINY.compile(WgpuBackend(), **options) as program, TINY.compile(CpuBackend(), **options) as cpu:
        expected = run_chunks(cpu, ids)
        assert device.status() == "active: played" and program.numerics_class.startswith("wgpu-1/played/cpu-")
        run_chunks(program, ids[:40])
        gpu.lost_in = gpu.calls + product
        with pytest.raises(DeviceLost, match="its end"):
            run_chunks(program, ids[40:], start=40)
        assert device.status() == "fallback(runtime-failure)"
        assert (program.numerics_class, program.one_arithmetic) == (cpu.numerics_class, cpu.one_arithmetic)
        assert_same_bits(run_chunks(program, ids), expected, "from the start")
        program.reserve_pages(80)
        assert_same_bits(run_chunks(program, ids, pages=[79, 3, 70]), expected, "in new pages")


def test_memory_of_the_gpu_that_is_the_machines_is_planned(gpu):
    from rase.backends.base import CompileOptions

    graph, tensors = TINY.graph(), TINY.source.tensors
    plain, both = (one.estimate(graph, tensors, CompileOptions()) for one in (CpuBackend(), WgpuBackend()))
    there = [
        info.nbytes for name, info in tensors.items() if name.startswith("blk.") and len(info.shape) == 2
    ]
    assert both.weights - plain.weights == sum(there)


def test_a_gpu_without_room_leaves_matrices_to_the_cpu(gpu, monkeypatch):
    made = []

    class Small(PlayedMatrix):
        def __init__(self, gpu, info):
            if len(made) == 5:
                raise MemoryError
            made.append(info.name)
            super().__init__(gpu, info)

    monkeypatch.setattr(backend.device, "GpuMatrix", Small)
    with TINY.compile(WgpuBackend()) as program, TINY.compile(CpuBackend()) as cpu:
        assert program.offloaded == set(made)
        assert_close(run_chunks(program, TINY.ids(40)), run_chunks(cpu, TINY.ids(40)), 1e-3)


def test_a_gpu_that_fails_while_it_is_filled_is_given_up(gpu, monkeypatch):
    monkeypatch.setattr(PlayedMatrix, "write", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
    with TINY.compile(WgpuBackend()) as program, TINY.compile(CpuBackend()) as cpu:
        assert program.numerics_class == cpu.numerics_class
        assert device.status() == "fallback(runtime-failure)"
        assert_same_bits(run_chunks(program, TINY.ids(40)), run_chunks(cpu, TINY.ids(40)))


def test_without_a_gpu_the_backend_is_the_cpus(monkeypatch):
    state = device._State()
    state.searched, state.reason = True, "no adapter"
    monkeypatch.setattr(device, "_state", state)
    monkeypatch.setenv("RASE_GPU", "1")
    assert rase.gpu_info() == "inactive"
    usable, words = WgpuBackend().available()
    assert usable and words.endswith("prompts on a GPU: no adapter")
    with TINY.compile(WgpuBackend()) as program, TINY.compile(CpuBackend()) as cpu:
        assert_same_bits(run_chunks(program, TINY.ids(40)), run_chunks(cpu, TINY.ids(40)))
    chosen = rase.RuntimeDevice.select("cpu")
    chosen.smoke_test()
    assert chosen.describe()["gpu"] == "inactive" and chosen.backend_name == "wgpu"
