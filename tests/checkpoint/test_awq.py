"""AWQ folders (W4A16, GEMM layout) run on their codes: near the float weights that these stand for.

Integer sums of codes and 16-bit activations (design rule R2, as Q4_1): tests/kernels has the bits, here is
what a model makes of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.base import CompileOptions
from rase.convert import quantize_gguf
from rase.errors import CorruptModelFile, UnsupportedFormat
from rase.gguf.formats import W4A16
from rase.models import build
from rase.models.files import open_model
from rase.testing.programs import assert_same_bits, decode_each, run_chunks
from rase.testing.tiny import ZOO, Tiny
from tests.support import hf_folder

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
ORDER = (
    0,
    2,
    4,
    6,
    1,
    3,
    5,
    7,
)  # the outputs of a word's nibbles, from the low one up (AutoAWQ's gemm version)
NAMES = {"llama": "llama3.1", "qwen3": "qwen3", "mixtral": "mixtral"}


def words(codes: np.ndarray) -> np.ndarray:
    """Codes (n, out) as AWQ's words (n, out / 8)."""
    out = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for place, column in enumerate(ORDER):
        out |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * place)
    return out


def model(name: str) -> Tiny:
    return ZOO[name].but(factors=None, dim=128, hidden=256, n_heads=4, n_kv_heads=2, head_dim=64, vocab=96)


def folders(path: Path, name: str) -> tuple[Path, Path, dict[str, Any]]:
    """A folder of AWQ weights, one of the float32 weights they stand for, the tensors of the first."""
    tiny, rng = model(name), np.random.default_rng(3)
    config = hf_folder.committed(name)["config"]
    config |= {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "vocab_size": 96,
               "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    packed: dict[str, Any] = {}
    floats: dict[str, Any] = {}
    for key, (dtype, array) in hf_folder.state(tiny).items():
        if array.ndim < 2 or "embed" in key or "lm_head" in key or key.endswith("gate.weight"):
            packed[key] = floats[key] = (dtype, array)
            continue
        out, cols = array.shape
        codes = rng.integers(0, 16, (cols, out))
        zeros = rng.integers(0, 16, (cols // 128, out))
        scales = (rng.uniform(0.5, 2, zeros.shape) * 0.02).astype(np.float16)
        base = key.removesuffix("weight")
        packed[base + "qweight"] = ("I32", words(codes))
        packed[base + "qzeros"] = ("I32", words(zeros))
        packed[base + "scales"] = ("F16", scales)
        wide = (np.repeat(part, 128, axis=0) for part in (zeros, scales.astype(np.float32)))
        values = (codes - next(wide)) * next(wide)
        floats[key] = ("F32", values.T.astype(np.float32))
    awq = hf_folder.write_folder(path / "awq", config | {"quantization_config": AWQ}, packed, shards=3)
    return awq, hf_folder.write_folder(path / "floats", config, floats), packed


def run(path: Path, ids: list[int], each: bool = False, **options: Any) -> np.ndarray:
    with open_model(path) as file:
        graph = build(file.metadata, file.tensors)
        program = get_backend("cpu").compile(graph, file.source(), CompileOptions(threads=2, **options))
    with program:
        program.reserve_pages(8)
        return decode_each(program, ids) if each else run_chunks(program, ids)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_codes_are_near_the_floats_that_they_stand_for(tmp_path: Path, name: str) -> None:
    awq, floats, _ = folders(tmp_path, name)
    with open_model(awq) as file:
        formats = {
            info.format.name for key, info in file.tensors.items() if "attn_" in key and "norm" not in key
        }
        assert formats == {"W4A16"} and file.tensors["blk.0.attn_q.weight"].shape == (256, 128)
    ids = model(name).ids(21)
    expected = run(floats, ids, numerics="portable")
    assert np.isfinite(expected).all() and expected.std() > 0.01
    found = run(awq, ids, numerics="portable")
    assert np.square(found - expected).sum() / np.square(expected).sum() < 1e-6
    assert_same_bits(run(awq, ids, each=True, numerics="portable"), found, f"{name} token by token")


def test_prompts_in_the_fast_class_are_near(tmp_path: Path) -> None:
    awq, floats, _ = folders(tmp_path, "qwen3")
    ids = model("qwen3").ids(21)
    expected, found = run(floats, ids, numerics="portable"), run(awq, ids)
    assert np.square(found - expected).sum() / np.square(expected).sum() < 2e-4


def test_a_row_is_what_the_layout_says() -> None:
    """One weight of each place of a word is found where AutoAWQ puts it."""
    from rase._kernels import awq
    from rase.gguf.dequantize import dequantize

    rng = np.random.default_rng(5)
    codes, zeros = rng.integers(0, 16, (256, 136)), rng.integers(0, 16, (2, 136))
    scales = rng.normal(0, 1, (2, 136)).astype(np.float16)
    rows = np.empty((136, 2 * 68), np.uint8)
    awq.rows(words(codes), words(zeros), scales.view(np.uint16), rows)
    found = dequantize(W4A16, rows.tobytes(), (136, 256))
    wide = np.repeat(zeros, 128, axis=0), np.repeat(scales.astype(np.float32), 128, axis=0)
    assert np.array_equal(found, ((codes - wide[0]) * wide[1]).T.astype(np.float32))
    with pytest.raises(ValueError, match="disagree"):
        awq.rows(words(codes), words(zeros), scales.view(np.uint16), rows[:8])


BROKEN: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another group size": ({"group_size": 64}, UnsupportedFormat, "group_size 64"),
    "another layout": ({"version": "gemv"}, UnsupportedFormat, "version gemv"),
    "no zero points": ({"zero_point": False}, UnsupportedFormat, "zero_point false"),
    "three bits": ({"bits": 3}, UnsupportedFormat, "bits 3"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_other_ways_to_quantize_are_refused(tmp_path: Path, case: str) -> None:
    changes, error, says = BROKEN[case]
    _, _, tensors = folders(tmp_path, "qwen3")
    config = hf_folder.committed("qwen3")["config"] | {"quantization_config": AWQ | changes}
    path = hf_folder.write_folder(tmp_path / "m", config, tensors)
    with pytest.raises(error, match=says):
        open_model(path)


def test_parts_of_a_matrix_that_are_absent_or_wrong(tmp_path: Path) -> None:
    awq, _, tensors = folders(tmp_path, "qwen3")
    config = hf_folder.committed("qwen3")["config"] | {"quantization_config": AWQ}
    base = "model.layers.0.mlp.up_proj."
    dtype, scales = tensors[base + "scales"]
    for change, says in (
        ({base + "scales": None}, "scales' is missing"), ({base + "qzeros": None}, "qzeros' is missing"),
        ({base + "scales": (dtype, scales[:, :8])}, "groups of 128"),
        ({base + "scales": ("BF16", scales.view(np.uint16))}, "F16"), ({base + "qweight": None}, "qzeros"),
    ):  # fmt: skip
        changed = {key: one for key, one in (tensors | change).items() if one is not None}
        path = hf_folder.write_folder(tmp_path / "m", config, changed)
        with pytest.raises((CorruptModelFile, UnsupportedFormat), match=says):
            open_model(path)
    with pytest.raises(UnsupportedFormat, match="quantized already"):
        quantize_gguf(awq, tmp_path / "q.gguf")
