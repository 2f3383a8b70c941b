"""Proof 5 of list 03: quantized files are as good as llama.cpp's, of the same formats, and load there.

Needs ``llama_cpp`` in this environment (tests/proofs/03.sh installs it).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest

from rase.convert import quantize_gguf
from rase.convert.mixes import MIXES
from rase.gguf.dequantize import dequantize
from rase.gguf.reader import GgufFile
from rase.text.tokenizer import LocalTokenizer
from tests.support import hf_folder, toys
from tests.support.float_model import write_float_model
from tests.support.toy_tokenizers import toy_bpe

pytestmark = pytest.mark.proof

SHAPES = {
    "wide": {"dim": 512, "hidden": 1024, "n_layers": 9},
    "narrow": {"dim": 288, "hidden": 768, "n_layers": 3},
}


def by_llama_cpp(source: Path, target: Path, mix: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = MIXES[mix].file_type
    params.nthread = 2
    names = (str(source).encode(), str(target).encode())
    assert llama_cpp.llama_model_quantize(*names, ctypes.byref(params)) == 0


def squared_error(tensor: gguf.ReaderTensor, values: np.ndarray) -> float:
    back = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    return float(np.square(back - values).sum())


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_good_as_llama_cpp(tmp_path: Path, mix: str, shape: str) -> None:
    source = write_float_model(tmp_path / "f.gguf", **SHAPES[shape], tied=shape == "narrow")
    quantize_gguf(source, tmp_path / "ours.gguf", mix)
    by_llama_cpp(source, tmp_path / "theirs.gguf", mix)
    ours, theirs = (
        {t.name: t for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors} for name in ("ours", "theirs")
    )
    kinds = [{name: t.tensor_type.name for name, t in each.items()} for each in (ours, theirs)]
    assert kinds[0] == kinds[1]
    errors = np.zeros(2)
    with GgufFile.open(source) as file:
        for name, info in file.tensors.items():
            values = dequantize(info.format, file.read(info), info.shape)
            each = [squared_error(t[name], values) for t in (ours, theirs)]
            assert each[0] <= 1.05 * each[1], f"{name} {ours[name].tensor_type.name}: {each}"
            errors += each
    print(f"{mix} {shape}: squared error {errors[0] / errors[1]:.4f} of llama.cpp's")


def test_llama_cpp_loads_what_a_folder_gave(tmp_path: Path) -> None:
    """Tokenizer and all: its vocabulary encodes as the folder's tokenizer.json does."""
    llama_cpp = pytest.importorskip("llama_cpp")
    tokenizer = toy_bpe()
    source = toys.chain(tmp_path, ["H", "e", "l", "o"], tokenizer=tokenizer)
    folder = hf_folder.from_gguf(source, tmp_path / "folder", tokenizer.write_json(tmp_path))
    quantize_gguf(folder, tmp_path / "q.gguf", "Q8_0")
    model = llama_cpp.Llama(str(tmp_path / "q.gguf"), vocab_only=True, verbose=False)
    text = "hello the world<|eot_id|> 123"
    found = model.tokenize(text.encode(), add_bos=False, special=True)
    with GgufFile.open(tmp_path / "q.gguf") as file:
        ours = LocalTokenizer.from_gguf(file.metadata)
    whole = LocalTokenizer.from_json((folder / "tokenizer.json").read_bytes())
    assert (
        found == ours.encode(text, add_special_tokens=False) == whole.encode(text, add_special_tokens=False)
    )


@pytest.mark.parametrize("mix", MIXES)
def test_llama_cpp_loads_it(tmp_path: Path, mix: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    quantize_gguf(write_float_model(tmp_path / "f.gguf"), tmp_path / "q.gguf", mix)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(tmp_path / "q.gguf").encode(), llama_cpp.llama_model_default_params()
    )
    assert model, "llama.cpp refuses the file"
    assert llama_cpp.llama_model_n_embd(model) == 256
    llama_cpp.llama_model_free(model)
