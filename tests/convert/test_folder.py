"""``quantize_gguf`` from a folder: the file that a GGUF file of its weights gives, tokenizer and all."""

from __future__ import annotations

import lzma
from pathlib import Path

import gguf
import numpy as np
import pytest

from rase.convert import quantize_gguf
from rase.convert.vocabulary import embed
from rase.errors import CorruptModelFile, UnsupportedFormat
from rase.gguf.reader import GgufFile
from rase.session import ModelSession
from rase.testing.tiny import ZOO, Tiny
from rase.text.tokenizer import LocalTokenizer
from tests.support import hf_folder, toys
from tests.support.gguf_build import write_gguf
from tests.support.toy_tokenizers import toy_bpe, toy_spm

NORMS = ("attn_norm.weight", "ffn_gate_inp.weight", "attn_q_norm.weight")


def wide(name: str) -> Tiny:
    return ZOO[name].but(factors=None, dim=256, hidden=256, head_dim=32, std=0.06)


def sized(name: str) -> dict[str, object]:
    """The configuration of a model of the zoo, wide enough for blocks of 256."""
    config = hf_folder.committed(name)["config"]
    config |= {"hidden_size": 256, "intermediate_size": 256, "head_dim": 32}
    return config | ({"moe_intermediate_size": 256} if "moe_intermediate_size" in config else {})


@pytest.mark.parametrize("name", ["llama3.1", "qwen3", "gemma3", "mixtral", "qwen35"])
@pytest.mark.parametrize("mix", ["Q4_K_M", "Q8_0"])
def test_a_folder_gives_the_tensors_of_its_gguf_file(tmp_path: Path, name: str, mix: str) -> None:
    tiny = wide(name).but(n_layers=2) if name not in ("gemma3", "qwen35") else wide(name)
    folder = hf_folder.write_folder(tmp_path / "folder", sized(name), hf_folder.state(tiny), shards=2)
    tensors = {
        key: (tiny.source.raw[key], info.shape, info.format.name) for key, info in tiny.source.tensors.items()
    }
    source = write_gguf(tmp_path / "f.gguf", tiny.metadata, tensors)
    quantize_gguf(folder, tmp_path / "a.gguf", mix)
    quantize_gguf(source, tmp_path / "b.gguf", mix)
    with GgufFile.open(tmp_path / "a.gguf") as ours, GgufFile.open(tmp_path / "b.gguf") as theirs:
        assert ours.tensors.keys() == theirs.tensors.keys()
        for key, info in ours.tensors.items():
            other = theirs.tensors[key]
            assert (info.shape, info.format) == (other.shape, other.format)
            assert ours.read(info) == theirs.read(other), key
    assert len(gguf.GGUFReader(tmp_path / "a.gguf").tensors) == len(tensors)


def test_what_is_not_quantized_becomes_float32(tmp_path: Path) -> None:
    state = hf_folder.state(wide("qwen3"))
    halves = {
        key: ("BF16", (array.view(np.uint32) >> 16).astype(np.uint16)) for key, (_, array) in state.items()
    }
    folder = hf_folder.write_folder(tmp_path / "folder", sized("qwen3"), halves)
    quantize_gguf(folder, tmp_path / "q.gguf", "Q4_0")
    with GgufFile.open(tmp_path / "q.gguf") as file:
        formats = {key.split(".", 2)[-1]: info.format.name for key, info in file.tensors.items()}
    assert {formats[key] for key in NORMS if key in formats} == {"F32"} and formats["attn_q.weight"] == "Q4_0"


def test_a_quantized_folder_runs_with_its_tokenizer(tmp_path: Path) -> None:
    source = toys.chain(tmp_path, ["H", "e", "l", "o"])
    folder = hf_folder.from_gguf(source, tmp_path / "folder", toy_bpe().write_json(tmp_path))
    quantize_gguf(folder, tmp_path / "q.gguf", "Q8_0")
    file, whole = (ModelSession.load_file(path) for path in (tmp_path / "q.gguf", folder))
    assert file.tokenizer.encode("hello the<|eot_id|> 123") == whole.tokenizer.encode(
        "hello the<|eot_id|> 123"
    )
    assert file.end_tokens == whole.end_tokens and file.tokenizer.bos_id == whole.tokenizer.bos_id
    messages = [{"role": "user", "content": "hello"}]
    assert file.chat_template is not None and whole.chat_template is not None
    assert file.chat_template.render(messages) == whole.chat_template.render(messages)


def test_a_tokenizer_without_words_in_gguf_is_left_out(tmp_path: Path) -> None:
    source = toys.chain(tmp_path, ["H", "e", "l", "o"])
    folder = hf_folder.from_gguf(source, tmp_path / "folder", toy_spm().write_json(tmp_path))
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"bos_token_id"', '"x"').replace('"eos_token_id"', '"y"')
    )
    quantize_gguf(folder, tmp_path / "q.gguf", "Q8_0")
    with GgufFile.open(tmp_path / "q.gguf") as file:
        assert (
            file.metadata["tokenizer.ggml.model"] == "none" and "tokenizer.ggml.tokens" not in file.metadata
        )


def test_a_real_tokenizer_goes_into_the_file(qwen3_tokenizer: Path) -> None:
    data = lzma.decompress((qwen3_tokenizer / "tokenizer.json.xz").read_bytes())
    values: dict[str, object] = {}
    types: dict[str, str] = {}
    embed(data, 151936, values, types)
    assert values["tokenizer.ggml.pre"] == "qwen2" and len(values["tokenizer.ggml.tokens"]) == 151936
    other, one = LocalTokenizer.from_gguf(values), LocalTokenizer.from_json(data)
    text = "<think>a e\u0301\n\n" + "".join(map(chr, range(32, 1500)))
    assert other.encode(text) == one.encode(text)


def test_nothing_is_written_from_a_folder_that_is_damaged(tmp_path: Path) -> None:
    state = hf_folder.state(wide("qwen3"))
    bad = state["model.layers.0.mlp.up_proj.weight"][1].copy()
    bad[3, 5] = np.nan
    folder = hf_folder.write_folder(
        tmp_path / "folder", sized("qwen3"), state | {"model.layers.0.mlp.up_proj.weight": ("F32", bad)}
    )
    with pytest.raises(CorruptModelFile, match="ffn_up"):
        quantize_gguf(folder, tmp_path / "q.gguf")
    folder = hf_folder.write_folder(
        tmp_path / "other", sized("qwen3") | {"quantization_config": {"quant_method": "fp8"}}, state
    )
    with pytest.raises(UnsupportedFormat, match="fp8"):
        quantize_gguf(folder, tmp_path / "q.gguf")
    assert not list(tmp_path.glob("*.gguf*"))
