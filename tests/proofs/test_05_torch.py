"""The torch backend on torch's CPU device: the whole contract, faults in its own functions, its options."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from rase.backends.base import CompileOptions
from rase.backends.reference import ReferenceBackend
from rase.backends.torch import TorchBackend
from rase.errors import BackendUnavailable, InvalidSetting, UnsupportedFormat
from rase.graph import ops
from rase.testing import BackendContract, ModelContract
from rase.testing.blocks import random_blocks
from rase.testing.ops import CASES, KINDS, case_rows
from rase.testing.programs import assert_close, decode_each, nmse, run_chunks
from rase.testing.tiny import TINY_LLAMA, WIDE_QWEN3, ZOO

torch = pytest.importorskip("torch")

from rase.backends._torch_graphs import DecodeGraphs  # noqa: E402
from rase.backends._torch_ops import OPS  # noqa: E402
from rase.backends._torch_step import Step  # noqa: E402

pytestmark = pytest.mark.proof

CODEBOOKS = ("IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S",
             "IQ1_S", "IQ1_M")  # fmt: skip


class TestTorch(BackendContract):
    exact = False
    near = 1e-7  # K and V are float16: a last bit of float32 becomes one of theirs
    numerics = ("fast",)
    threads = (1, 2)
    gates: ClassVar = {"op": 1e-9, "fast": 1e-6, "quantized": 1e-6}
    refused = tuple(f"matrices in {name}" for name in CODEBOOKS)

    def backend(self):
        return TorchBackend()


class TestBfloat16Prompts(ModelContract):
    """What an accelerator does by itself."""

    numerics = ("fast",)
    options: ClassVar = {"prefill": "bf16"}

    def backend(self):
        return TorchBackend()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ops.Route])
def test_a_fault_in_a_function_of_torch_is_seen(kind, monkeypatch):
    name = next(name for name in CASES if CASES[name].kind is kind and name not in TestTorch.refused)
    right = case_rows(TorchBackend(), name, {})
    monkeypatch.setitem(OPS, kind, lambda *given, own=OPS[kind]: own(*given) * 1.05)
    assert nmse(case_rows(TorchBackend(), name, {}), right) > 100 * TestTorch.gates["op"]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0"])
def test_quantized_weights_are_unpacked_bit_for_bit(name):
    from rase.backends._torch_formats import Matrix
    from rase.gguf.dequantize import dequantize
    from rase.gguf.formats import format_named

    form, shape = format_named(name), (7, 512)
    raw = random_blocks(name, shape, np.random.default_rng(1))
    data = torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(7, -1).copy())
    found = Matrix(data, form, 512).rows(slice(None)).numpy()
    assert np.array_equal(found.view(np.uint32), dequantize(form, raw, shape).view(np.uint32))


def test_weights_may_be_resident_in_bfloat16(monkeypatch):
    monkeypatch.setenv("RASE_TORCH_WEIGHTS", "bf16")
    for name in ("Q4_K", "IQ4_NL"):  # and then in any format
        tiny = WIDE_QWEN3.but(matrices=name)
        ids = tiny.ids(40)
        with tiny.compile(TorchBackend()) as program, tiny.compile(ReferenceBackend()) as reference:
            assert "weights-bf16" in program.numerics_class
            assert_close(run_chunks(program, ids), run_chunks(reference, ids), 1e-3, name)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"numerics": "portable"}, InvalidSetting, "no integer path"),
        ({"prefill": "int8"}, InvalidSetting, "no integer path"),
        ({"kv": "q8_0"}, InvalidSetting, "in float16"),
    ],
)
def test_options_that_it_does_not_have_are_refused_by_name(options, error, message):
    for call in ("estimate", "compile"):
        source = TINY_LLAMA.source.tensors if call == "estimate" else TINY_LLAMA.source
        with pytest.raises(error, match=message):
            getattr(TorchBackend(), call)(TINY_LLAMA.graph(), source, CompileOptions(**options))


def test_a_format_without_an_unpacking_is_refused_by_name_with_the_way_out():
    tiny = WIDE_QWEN3.but(matrices="IQ4_XS")
    with pytest.raises(UnsupportedFormat, match=r"format IQ4_XS.*RASE_TORCH_WEIGHTS=bf16"):
        tiny.compile(TorchBackend())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_absent_is_refused_by_name():
    with pytest.raises(BackendUnavailable, match="finds no cuda device"):
        TINY_LLAMA.compile(TorchBackend("cuda"))


class _Again:
    """Stands for a captured graph: replays by walking again, into the same rows."""

    def __init__(self, program, step, out):
        self.program, self.step, self.out = program, step, out

    def replay(self):
        self.out.copy_(self.program.walk(self.step))


def test_decode_steps_are_padded_to_captured_sizes_without_a_trace(monkeypatch):
    """What of CUDA graphs needs no CUDA: sizes, the spare page, tables that grow, storage that moves."""
    monkeypatch.setattr(DecodeGraphs, "serve", staticmethod(lambda graph, device: True))

    def capture(self, batch):
        step = Step(batch, self.program.graph, self.program.page_tokens, self.program.device)
        out = self.program.walk(step)
        return _Again(self.program, step, out), step, out

    monkeypatch.setattr(DecodeGraphs, "_capture", capture)
    for tiny in (ZOO["gemma2"], TINY_LLAMA):
        with tiny.compile(TorchBackend()) as program, tiny.compile(ReferenceBackend("float16")) as reference:
            ids = tiny.ids(100)
            for each in (program, reference):
                run_chunks(each, ids[:60])
            assert_close(
                decode_each(program, ids[60:80], start=60), decode_each(reference, ids[60:80], start=60), 1e-6
            )
            program.reserve_pages(100)
            assert_close(
                decode_each(program, ids[80:], start=80), decode_each(reference, ids[80:], start=80), 1e-6
            )
            assert program._graphs._captured, "no step went through a captured graph"
