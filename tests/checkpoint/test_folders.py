"""Folders in the layout of transformers: the logits of the GGUF file with the same weights, bit for bit.

What a folder holds comes from transformers itself (goldens/checkpoints.json), not from the code under test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rase.backends import get_backend
from rase.backends.base import CompileOptions
from rase.errors import CorruptModelFile, UnsupportedArchitecture, UnsupportedFormat
from rase.models import build, resolve
from rase.models.files import open_model
from rase.testing.programs import assert_same_bits, run_chunks
from rase.testing.tiny import ZOO, Tiny
from tests.support import hf_folder

IDS = 40
FOLDERS = [name for name, tiny in ZOO.items() if hasattr(resolve(tiny.architecture).module, "CHECKPOINTS")]


def logits(tiny: Tiny, **options: Any) -> np.ndarray:
    with tiny.compile(get_backend("cpu"), threads=1, **options) as program:
        return run_chunks(program, tiny.ids(IDS))


def folder_logits(path: Path, tiny: Tiny, **options: Any) -> np.ndarray:
    with open_model(path) as file:
        graph = build(file.metadata, file.tensors)
        program = get_backend("cpu").compile(graph, file.source(), CompileOptions(threads=2, **options))
    with program:
        program.reserve_pages(64)
        return run_chunks(program, tiny.ids(IDS))


def model(name: str) -> Tiny:
    return ZOO[name].but(factors=None)  # what Llama 3.1 scales by is in config.json: its own test below


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_bits_of_the_gguf_file(tmp_path: Path, name: str) -> None:
    tiny = model(name)
    path = hf_folder.write_tiny(tmp_path / name, name, tiny, shards=1 + len(name) % 3)
    found = folder_logits(path, tiny, numerics="portable")
    assert_same_bits(found, logits(tiny, numerics="portable"), name)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folders_of_these_tests_hold_what_transformers_writes(name: str) -> None:
    found = {tensor: list(array.shape) for tensor, (_, array) in hf_folder.state(ZOO[name]).items()}
    assert found == hf_folder.committed(name)["tensors"]


@pytest.mark.parametrize("name", ["llama3.1", "qwen2", "mixtral", "gemma2", "qwen35"])
@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_floats_run_as_they_are(tmp_path: Path, name: str, dtype: str) -> None:
    tiny = model(name).but(matrices=dtype)
    path = hf_folder.write_tiny(tmp_path / name, name, tiny, shards=2)
    with open_model(path) as file:
        formats = {info.format.name for key, info in file.tensors.items() if "attn_q.weight" in key}
    assert formats == {dtype}
    for numerics in ("portable", "fast"):
        found = folder_logits(path, tiny, numerics=numerics)
        assert_same_bits(found, logits(tiny, numerics=numerics), f"{name} {dtype} {numerics}")


def older(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration as transformers wrote it before version 5."""
    config = dict(config)
    rope = config.pop("rope_parameters")
    full = dict(rope.get("full_attention", rope))
    config["rope_theta"] = full.pop("rope_theta")
    full["type"] = full.pop("rope_type")
    config["rope_scaling"] = None if full["type"] == "default" else full
    if config["architectures"] == ["Gemma3ForCausalLM"]:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = 6
        del config["layer_types"]
    if "num_local_experts" in config and "Qwen" in config["architectures"][0]:
        config["num_experts"] = config.pop("num_local_experts")
    return config


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "qwen35"])  # which is younger
def test_older_configurations_say_the_same(tmp_path: Path, name: str) -> None:
    tensors, config = hf_folder.state(model(name)), hf_folder.committed(name)["config"]
    said = []
    for number, one in enumerate((config, older(config))):
        hf_folder.write_folder(tmp_path / f"{number}" / name, one, tensors)
        with open_model(tmp_path / f"{number}" / name) as file:
            build(file.metadata, file.tensors)
            said.append({key: np.array(value).tolist() for key, value in file.metadata.items()})
    assert said[0].pop(f"{said[0]['general.architecture']}.rope.freq_base_swa", None) in (None, 10000.0)
    said[1].pop(f"{said[0]['general.architecture']}.rope.freq_base_swa", None)
    assert said[0] == said[1]


# By what transformers 5.24 divides frequencies for the configuration of Llama 3.2 (float32)
LLAMA3 = [1.0] * 15 + [1.553414, 2.69453, 5.257327] + [8.0] * 14


def test_llama_3_scaling_becomes_factors(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}  # fmt: skip
    config = hf_folder.committed("llama3.1")["config"]
    config |= {"rope_theta": 500000.0, "rope_scaling": rope, "head_dim": 64, "num_attention_heads": 1,
               "num_key_value_heads": 1}  # fmt: skip
    del config["rope_parameters"]
    tiny = model("llama3.1").but(head_dim=64, n_heads=1, n_kv_heads=1, theta=500000.0)
    path = hf_folder.write_folder(tmp_path / "m", config, hf_folder.state(tiny))
    with open_model(path) as file:
        (factors,) = file.rows(file.tensors["rope_freqs.weight"], 1000)
    values = np.frombuffer(factors, "<f4")
    assert np.allclose(values, LLAMA3, rtol=2e-6)
    assert_same_bits(
        folder_logits(path, tiny, numerics="portable"),
        logits(tiny.but(factors=tuple(values.tolist())), numerics="portable"), "llama 3 scaling",
    )  # fmt: skip


def test_a_tied_model_ignores_an_output_matrix(tmp_path: Path) -> None:
    tiny = ZOO["granite"]
    tensors = hf_folder.state(tiny)
    tensors["lm_head.weight"] = ("F32", np.zeros((tiny.vocab, tiny.dim), np.float32))
    path = hf_folder.write_folder(tmp_path / "m", hf_folder.committed("granite")["config"], tensors)
    expected = logits(tiny, numerics="portable")
    assert_same_bits(folder_logits(path, tiny, numerics="portable"), expected, "tied")


def test_the_text_part_of_a_model_that_sees_images(tmp_path: Path) -> None:
    tiny, config = ZOO["gemma3"], hf_folder.committed("gemma3")["config"]
    tensors = {f"language_model.{name}": one for name, one in hf_folder.state(tiny).items()}
    tensors["vision_tower.vision_model.head.weight"] = ("F32", np.zeros((4, 4), np.float32))
    tensors["multi_modal_projector.mm_input_projection_weight"] = ("F32", np.zeros((4, 4), np.float32))
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    path = hf_folder.write_folder(tmp_path / "m", whole, tensors)
    expected = logits(tiny, numerics="portable")
    assert_same_bits(folder_logits(path, tiny, numerics="portable"), expected, "gemma3 with images")


def test_qwen35_with_images_and_layers_that_predict_further_tokens(tmp_path: Path) -> None:
    """Neither is run; the folder of a model that sees images holds its configuration one level down."""
    tiny, config = ZOO["qwen35"], hf_folder.committed("qwen35")["config"]
    tensors = {
        name.replace("model.", "model.language_model.", 1): one for name, one in hf_folder.state(tiny).items()
    }
    for name in (
        "model.visual.blocks.0.norm1.weight",
        "mtp.layers.0.input_layernorm.weight",
        "mtp.fc.weight",
    ):
        tensors[name] = ("F32", np.zeros((4, 4), np.float32))
    whole = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": config}
    path = hf_folder.write_folder(tmp_path / "m", whole, tensors)
    expected = logits(tiny, numerics="portable")
    assert_same_bits(folder_logits(path, tiny, numerics="portable"), expected, "qwen35 with images")


def test_which_layers_of_qwen35_are_recurrent_may_go_without_saying(tmp_path: Path) -> None:
    tiny, config = ZOO["qwen35"], dict(hf_folder.committed("qwen35")["config"])
    del config["layer_types"], config["rope_parameters"]["mrope_section"]
    path = hf_folder.write_folder(tmp_path / "m", config, hf_folder.state(tiny))
    expected = logits(tiny, numerics="portable")
    assert_same_bits(folder_logits(path, tiny, numerics="portable"), expected, "qwen35 by the interval")
    with open_model(path) as file:
        assert file.metadata["qwen35.rope.dimension_sections"].tolist() == [11, 11, 10, 0]


@pytest.mark.parametrize(
    ("inner", "shape"), [("in_proj_qkv.weight", (207, 64)), ("out_proj.weight", (64, 143)), ("A_log", (5,)),
                         ("conv1d.weight", (207, 1, 4)), ("in_proj_a.weight", (64,))],
)  # fmt: skip
def test_a_tensor_of_qwen35_with_other_sizes_is_refused(
    tmp_path: Path, inner: str, shape: tuple[int, ...]
) -> None:
    tensors = hf_folder.state(ZOO["qwen35"])
    name = f"model.layers.0.linear_attn.{inner}"
    assert name in tensors
    tensors[name] = ("F32", np.zeros(shape, np.float32))
    path = hf_folder.write_folder(tmp_path / "m", hf_folder.committed("qwen35")["config"], tensors)
    with pytest.raises(CorruptModelFile, match=r"blk\.0\."), open_model(path) as file:
        build(file.metadata, file.tensors)


def test_a_quantized_recurrent_layer_is_refused(tmp_path: Path) -> None:
    tensors = hf_folder.state(ZOO["qwen35"])
    base = "model.layers.0.linear_attn.in_proj_z"
    del tensors[f"{base}.weight"]
    for end, dtype in (("qweight", "I32"), ("qzeros", "I32"), ("scales", "F16")):
        tensors[f"{base}.{end}"] = (dtype, np.zeros((8, 8), np.float16 if dtype == "F16" else np.int32))
    path = hf_folder.write_folder(tmp_path / "m", hf_folder.committed("qwen35")["config"], tensors)
    with pytest.raises(UnsupportedFormat, match=r"in_proj_z.*is quantized"):
        open_model(path)


VARIANTS: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "another activation": ("qwen3", {"hidden_act": "gelu"}, UnsupportedArchitecture, "hidden_act"),
    "another class": ("qwen3", {"architectures": ["BertModel"]}, UnsupportedArchitecture, "BertModel"),
    "no class": ("qwen3", {"architectures": None}, CorruptModelFile, "architectures"),
    "another scaling": ("qwen3", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
                        UnsupportedArchitecture, "dynamic"),
    "gates as they are": ("qwen3moe", {"norm_topk_prob": False}, UnsupportedArchitecture, "norm_topk_prob"),
    "some dense layers": ("qwen3moe", {"mlp_only_layers": [1]}, UnsupportedArchitecture, "mlp_only_layers"),
    "windows in some layers": ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": None,
                                         "max_window_layers": 1},
                               UnsupportedArchitecture, "sliding_window_pattern"),
    "rotary embedding everywhere": ("smollm3", {"no_rope_layers": [1] * 5},
                                    UnsupportedArchitecture, "no_rope_layers"),
    "no number of layers": ("qwen3", {"num_hidden_layers": None}, CorruptModelFile, "num_hidden_layers"),
    "words for numbers": ("qwen3", {"rms_norm_eps": "small"}, CorruptModelFile, "rms_norm_eps"),
    "too many layers": ("qwen3", {"num_hidden_layers": 9}, CorruptModelFile, "blk.2"),
    "another type of layer": ("qwen35", {"layer_types": ["linear_attention"] * 4 + ["mamba"]},
                              CorruptModelFile, "layer_types"),
    "attention without a gate": ("qwen35", {"attn_output_gate": False},
                                 UnsupportedArchitecture, "attn_output_gate"),
    "quantized otherwise": ("qwen3", {"quantization_config": {"quant_method": "gptq", "bits": 4}},
                            UnsupportedFormat, "gptq"),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_does_not_run_is_refused_by_name(tmp_path: Path, variant: str) -> None:
    name, changes, error, says = VARIANTS[variant]
    config = hf_folder.committed(name)["config"] | changes
    path = hf_folder.write_folder(tmp_path / "m", config, hf_folder.state(model(name)))
    with pytest.raises(error, match=says), open_model(path) as file:
        build(file.metadata, file.tensors)


def test_tensors_that_no_table_knows_are_refused(tmp_path: Path) -> None:
    tensors = hf_folder.state(ZOO["qwen3"])
    tensors["model.layers.0.self_attn.sinks"] = ("F32", np.zeros(4, np.float32))
    path = hf_folder.write_folder(tmp_path / "m", hf_folder.committed("qwen3")["config"], tensors)
    with pytest.raises(UnsupportedArchitecture, match="sinks"), open_model(path) as file:
        build(file.metadata, file.tensors)


def test_an_expert_that_is_absent(tmp_path: Path) -> None:
    tensors = hf_folder.state(ZOO["mixtral"])
    del tensors["model.layers.0.block_sparse_moe.experts.2.w1.weight"]
    path = hf_folder.write_folder(tmp_path / "m", hf_folder.committed("mixtral")["config"], tensors)
    with pytest.raises(CorruptModelFile, match="expert 2"):
        open_model(path)


def test_rows_come_in_pieces_that_make_the_tensor(tmp_path: Path) -> None:
    tiny = ZOO["llama-linear"]
    path = hf_folder.write_tiny(tmp_path / "m", "llama-linear", tiny)
    with open_model(path) as file:
        for name, info in file.tensors.items():
            pieces = list(file.rows(info, 2000))
            assert b"".join(pieces) == tiny.source.raw[name], name
            assert len(pieces) > 1 or info.nbytes <= 8192
