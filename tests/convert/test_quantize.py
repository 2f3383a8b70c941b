"""``quantize_gguf``: the formats asked for, as good as the reference's, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from rase._kernels import quantize as kernel
from rase.cli.app import rase as command
from rase.convert import quantize_gguf
from rase.convert.mixes import MIXES, Model
from rase.errors import (
    Cancelled,
    CorruptModelFile,
    InvalidRequest,
    ModelFileNotFound,
    StoreError,
    UnsupportedFormat,
)
from rase.gguf.dequantize import dequantize
from rase.gguf.formats import format_named
from rase.gguf.reader import GgufFile
from tests.support.float_model import FORMATS, float_weights, write_float_model

LEGACY = ("Q4_0", "Q5_0", "Q5_1", "Q8_0")


def quantized(fmt: str, values: np.ndarray, threads: int = 1) -> np.ndarray:
    form = format_named(fmt)
    out = np.full(values.size // form.block_size * form.block_bytes, 0xA5, dtype=np.uint8)
    assert kernel.quantize(form.ggml_id, values.reshape(-1), out, threads)
    return out


def error(fmt: str, values: np.ndarray) -> float:
    """Mean squared error of a round trip over the mean square."""
    back = dequantize(format_named(fmt), quantized(fmt, values).tobytes(), values.shape)
    return float(np.square(back - values).mean() / np.square(values).mean())


@pytest.mark.parametrize("fmt", LEGACY)
def test_legacy_formats_are_bit_equal_to_the_package(fmt: str) -> None:
    zeros = np.zeros((1, 256), np.float32)
    values = np.vstack([float_weights((64, 256), 1), zeros, float_weights((8, 256), 2) * np.float32(1e4)])
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[fmt])
    assert np.array_equal(quantized(fmt, values), expected.reshape(-1))


def test_k_quants_are_as_good_as_the_reference() -> None:
    """The errors of llama.cpp's quantizers on the same weights, from tests/convert/make_reference.py."""
    reference = json.loads((Path(__file__).parent / "reference.json").read_text())
    values = float_weights((64, 1024), 3)
    for fmt, expected in reference.items():
        assert error(fmt, values) <= 1.05 * expected, fmt


@pytest.mark.parametrize("fmt", ["Q4_K", "Q5_K", "Q6_K"])
def test_awkward_blocks(fmt: str) -> None:
    """Zeros, constants, one outlier, positive values, tiny and huge ones: finite, and near what they were."""
    rows = np.zeros((7, 256), dtype=np.float32)
    rows[1], rows[2, 77], rows[3] = 0.25, 3.0, np.linspace(0.1, 1, 256)
    rows[4], rows[5], rows[6] = 1e-30, -1000.0, np.linspace(-1, 1, 256)
    back = dequantize(format_named(fmt), quantized(fmt, rows).tobytes(), rows.shape)
    assert np.isfinite(back).all()
    assert np.abs(back - rows).max(axis=1) == pytest.approx(0, abs=40) and (back[0] == 0).all()
    assert np.abs(back[3] - rows[3]).max() < 0.06 and np.abs(back[6] - rows[6]).max() < 0.12


def test_threads_change_no_byte() -> None:
    values = float_weights((64, 1024), 4)
    assert np.array_equal(quantized("Q4_K", values), quantized("Q4_K", values, 3))


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="no quantizer"):
        kernel.quantize(16, np.zeros(256, np.float32), np.zeros(66, np.uint8))
    with pytest.raises(ValueError, match="sizes"):
        kernel.quantize(12, np.zeros(256, np.float32), np.zeros(143, np.uint8))


@pytest.mark.parametrize("matrices", FORMATS)
@pytest.mark.parametrize("mix", MIXES)
def test_a_file_is_quantized(tmp_path: Path, mix: str, matrices: str) -> None:
    source = write_float_model(tmp_path / "f.gguf", matrices=matrices, tied=mix != "Q8_0")
    seen: list[tuple[int, int]] = []
    size = quantize_gguf(source, tmp_path / "q.gguf", mix, progress=lambda *step: seen.append(step))
    assert size == (tmp_path / "q.gguf").stat().st_size and seen[-1][0] == seen[-1][1] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.gguf", "q.gguf"]
    reader = gguf.GGUFReader(tmp_path / "q.gguf")  # an independent reader
    assert reader.fields["general.file_type"].contents() == MIXES[mix].file_type
    assert reader.fields["general.tags"].contents() == ["a", "ü"]
    with GgufFile.open(source) as floats:
        for tensor in reader.tensors:
            info = floats.tensors[tensor.name]
            values = dequantize(info.format, floats.read(info), info.shape)
            back = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(info.shape)
            if len(info.shape) == 1:
                assert np.array_equal(values, back)
            else:
                assert np.square(back - values).mean() < 0.01 * np.square(values).mean(), tensor.name
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    base, better = MIXES[mix].base, MIXES[mix].better
    assert kinds["blk.0.attn_q.weight"] == kinds["blk.1.ffn_gate.weight"] == base
    assert kinds["blk.1.attn_v.weight"] == kinds["blk.1.ffn_down.weight"] == better
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    last, wanted = ("output.weight", "Q8_0") if mix == "Q8_0" else ("token_embd.weight", "Q6_K")
    assert kinds[last] == wanted


def test_rows_that_are_no_multiple_of_256(tmp_path: Path) -> None:
    source = write_float_model(tmp_path / "f.gguf", dim=96, hidden=160)
    quantize_gguf(source, tmp_path / "q.gguf", "Q4_K_M")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "q.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q5_0" and kinds["blk.1.ffn_down.weight"] == "Q8_0"
    assert kinds["token_embd.weight"] == "Q8_0"


def test_the_layers_that_get_more() -> None:
    """Of 24 layers: 0-2, 21-23, and every third between."""
    from rase.convert.mixes import _matters

    assert [i for i in range(24) if _matters(i, 24)] == [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
    model = Model.of({"general.architecture": "llama", "llama.block_count": 3}, ["blk.0.attn_v.weight"])
    assert model == Model(3, 0, False, False, (0,))


def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    source, target = write_float_model(tmp_path / "f.gguf"), tmp_path / "q.gguf"
    with pytest.raises(InvalidRequest, match="the mix 'Q9'"):
        quantize_gguf(source, target, "Q9")
    with pytest.raises(ModelFileNotFound):
        quantize_gguf(tmp_path / "absent.gguf", target)
    with pytest.raises(StoreError):
        quantize_gguf(source, tmp_path / "absent" / "q.gguf")
    with pytest.raises(InvalidRequest, match="there already"):
        quantize_gguf(source, source, overwrite=True)
    quantize_gguf(source, target, "Q8_0")
    with pytest.raises(InvalidRequest, match="there already"):
        quantize_gguf(source, target, "Q8_0")
    with pytest.raises(UnsupportedFormat, match="is quantized already"):
        quantize_gguf(target, tmp_path / "again.gguf")
    assert quantize_gguf(source, target, "Q4_0", overwrite=True) == target.stat().st_size
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.gguf", "q.gguf"]


def test_nothing_is_left_of_a_run_that_stops(tmp_path: Path) -> None:
    source, target = write_float_model(tmp_path / "f.gguf"), tmp_path / "q.gguf"
    asked = iter([False, False, True])
    with pytest.raises(Cancelled):
        quantize_gguf(source, target, cancelled=lambda: next(asked))

    def interrupt(done: int, total: int) -> None:
        if done * 2 > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_gguf(source, target, progress=interrupt)
    raw = bytearray(source.read_bytes())
    raw[-4:] = np.float32(np.nan).tobytes()  # the last norm is copied, so break the matrix before it, too
    with GgufFile.open(source) as file:
        info = file.tensors["blk.1.ffn_down.weight"]
    raw[info.offset + 400 : info.offset + 404] = np.float32(np.inf).tobytes()
    (tmp_path / "bad.gguf").write_bytes(raw)
    with pytest.raises(CorruptModelFile, match=r"ffn_down.*holds a NaN or an infinity"):
        quantize_gguf(tmp_path / "bad.gguf", target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf", "f.gguf"]


def test_the_command(tmp_path: Path) -> None:
    source, target = write_float_model(tmp_path / "f.gguf"), tmp_path / "q.gguf"
    arguments = ["model", "quantize", str(source), str(target), "--to", "Q6_K", "--json"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["size"] == target.stat().st_size
