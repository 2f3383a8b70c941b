"""The wgpu backend on a software adapter (lavapipe): the contract, each shader, a GPU that is lost."""

from __future__ import annotations

import numpy as np
import pytest

from rase.backends import _wgpu_device as device
from rase.backends import _wgpu_shaders as shaders
from rase.backends.cpu import CpuBackend
from rase.backends.wgpu import WgpuBackend
from rase.errors import DeviceLost
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import TensorInfo, format_named
from rase.testing import BackendContract
from rase.testing.blocks import random_blocks
from rase.testing.ops import case_rows
from rase.testing.programs import assert_close, assert_same_bits, decode_each, nmse, run_chunks
from rase.testing.tiny import TINY_LLAMA, WIDE_QWEN3

pytest.importorskip("wgpu")
pytestmark = pytest.mark.proof


@pytest.fixture(autouse=True)
def software(monkeypatch):
    """A search of its own for each test, with software adapters."""
    monkeypatch.setenv("RASE_GPU_SOFTWARE", "1")
    monkeypatch.setattr(device, "_state", device._State())
    assert device.gpu()[0] is not None, device.gpu()[1]


class TestWgpu(BackendContract):
    refused = ("attention with sinks",)

    def backend(self):
        return WgpuBackend()


@pytest.mark.parametrize("name", shaders.UNPACKED)
def test_a_shader_multiplies_as_the_reference_does(name, figure):
    """And the same bits for a row, whatever rows are beside it."""
    form, shape, rng = format_named(name), (150, 768), np.random.default_rng(4)
    raw = random_blocks(name, shape, rng)
    found, _ = device.gpu()
    matrix = device.GpuMatrix(found, TensorInfo("w", shape, form, 0, 0, len(raw)))
    matrix.write(found, 0, memoryview(raw))
    products = device.Products(found, 70, 768, 150)
    x = rng.normal(size=(70, 768)).astype(np.float32)
    (rows,) = products.run(x, [matrix])
    error = nmse(rows, x.astype(float) @ dequantize(form, raw, shape).T.astype(float))
    figure(f"{name}: NMSE {error:.1g}")
    assert error < 1e-11
    (alone,) = products.run(x[33:34], [matrix])
    assert_same_bits(alone[0], rows[33], "alone")


@pytest.mark.parametrize("name", shaders.UNPACKED)
def test_a_fault_in_a_shader_is_seen(name, monkeypatch):
    wrong = shaders.UNPACKED[name].replace("right[slot + 32u * i] = ", "right[slot + 32u * i] = 1.05 * ")
    assert wrong != shaders.UNPACKED[name]
    right = case_rows(CpuBackend(), f"matrices in {name}", {})
    assert nmse(case_rows(WgpuBackend(), f"matrices in {name}", {}), right) < 1e-4
    monkeypatch.setitem(shaders.UNPACKED, name, wrong)
    monkeypatch.setattr(device, "_state", device._State())
    if name == "Q8_0":  # the format of the first product, with a known answer
        assert device.gpu()[0] is None and "wrong results" in device.gpu()[1]
    else:
        assert nmse(case_rows(WgpuBackend(), f"matrices in {name}", {}), right) > 2e-4


def test_only_matrices_with_a_shader_leave_the_cpu():
    """Of formats without one, and in classes that promise another arithmetic, none does."""
    for tiny, options, count in (
        (WIDE_QWEN3.but(matrices="Q4_K"), {}, 14),
        (WIDE_QWEN3.but(matrices="IQ4_XS"), {}, 0),
        (TINY_LLAMA, {}, 0),
        (WIDE_QWEN3.but(matrices="Q4_K"), {"numerics": "portable"}, 0),
        (WIDE_QWEN3.but(matrices="Q4_K"), {"prefill": "f32"}, 0),
    ):
        with tiny.compile(WgpuBackend(), **options) as program:
            assert len(getattr(program, "offloaded", ())) == count
            assert program.numerics_class.startswith("wgpu-1/llvmpipe" if count else "cpu-")


def test_answers_have_the_bits_of_the_cpu():
    """Generated tokens never leave it: behind a prompt of generated tokens both backends agree."""
    tiny = WIDE_QWEN3.but(matrices="Q4_K")
    ids = tiny.ids(40)
    with tiny.compile(WgpuBackend()) as program, tiny.compile(CpuBackend()) as cpu:
        assert_same_bits(decode_each(program, ids), decode_each(cpu, ids), "generated")
        found, expected = run_chunks(program, ids), run_chunks(cpu, ids)
        assert_close(found, expected, 1e-3)
        assert not np.array_equal(found, expected), "the GPU was not used"


def test_a_lost_gpu_is_a_typed_error_and_the_program_goes_on_as_the_cpus():
    tiny = WIDE_QWEN3.but(matrices="Q4_K")
    ids = tiny.ids(80)
    with tiny.compile(WgpuBackend()) as program, tiny.compile(CpuBackend()) as cpu:
        expected = run_chunks(cpu, ids)
        run_chunks(program, ids[:40])
        assert device.status().startswith("active: llvmpipe")
        device.gpu()[0].device.destroy()
        with pytest.raises(DeviceLost):
            run_chunks(program, ids[40:], start=40)
        assert device.status() == "fallback(runtime-failure)"
        assert program.numerics_class == cpu.numerics_class and not program.offloaded
        assert_same_bits(run_chunks(program, ids), expected, "from the start, on the CPU")
    with tiny.compile(WgpuBackend()) as program:  # and what is loaded later never asks for it
        assert_same_bits(run_chunks(program, ids), expected, "loaded later")


def test_without_the_word_for_them_software_adapters_do_not_count(monkeypatch):
    monkeypatch.delenv("RASE_GPU_SOFTWARE")
    monkeypatch.setattr(device, "_state", device._State())
    found, reason = device.gpu()
    if found is None:
        assert "software adapters only" in reason and device.status() == "inactive"
    else:
        assert found.shares_memory is not None, "a real GPU is here"
