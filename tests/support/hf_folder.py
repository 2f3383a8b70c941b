"""Folders in the layout of transformers, of the models of tiny.py: names and configurations are its own.

``checkpoints.json`` beside the goldens holds each config.json as transformers wrote it, and the names, shapes
and order of the tensors in its file. Rows and norms are put back into the layout of checkpoints here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rase.testing.tiny import Tiny

COMMITTED = Path(__file__).parents[1] / "models" / "goldens" / "checkpoints.json"
NEIGHBOUR = ("llama", "mixtral", "granite", "smollm3")  # GGUF files hold permuted query and key rows
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj", "ffn_down_exps": "mlp.experts.{}.down_proj",
}  # fmt: skip
OLMO = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
OWN_NAMES: dict[str, dict[str, str]] = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"}, "olmo2": OLMO,
    "gemma2": {**OLMO, "ffn_norm": "pre_feedforward_layernorm"},
    "gemma3": {**OLMO, "ffn_norm": "pre_feedforward_layernorm"},
    "qwen35": {
        "post_attention_norm": "post_attention_layernorm", "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z", "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b", "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj", "ssm_conv1d": "linear_attn.conv1d",
    },
    "mixtral": {
        "ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3", "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
}  # fmt: skip
Tensors = dict[str, tuple[str, np.ndarray]]  # dtype, and the bytes as an array of that shape


def committed(name: str) -> dict[str, Any]:
    """ "config" and "tensors" (name -> shape) of a model of the zoo, as transformers wrote them."""
    return json.loads(COMMITTED.read_text())[name]  # type: ignore[no-any-return]


def state(tiny: Tiny) -> Tensors:
    """The weights under the names and in the layouts of a checkpoint, in the formats that ``tiny`` has."""
    kind = "mixtral" if tiny.architecture == "llama" and tiny.n_experts else tiny.architecture
    arrays = {}
    for name, info in tiny.source.tensors.items():
        dtype = "<f4" if info.format.name == "F32" else "<u2"
        arrays[name] = info.format.name, np.frombuffer(tiny.source.raw[name], dtype).reshape(info.shape)
    found = checkpoint_tensors(kind, tiny.head_dim, arrays)
    return ungrouped(tiny, found) if kind == "qwen35" else found


def checkpoint_tensors(kind: str, head_dim: int, tensors: Tensors) -> Tensors:
    """From the names and layouts of GGUF files to those of checkpoints."""
    names, found = NAMES | OWN_NAMES.get(kind, {}), {}
    for name, (fmt, array) in tensors.items():
        part, end = name.rsplit(".", 1)
        if "rope_" in part:
            continue
        if kind.startswith(("gemma", "qwen35")) and "norm" in name and "ssm_norm" not in name:
            array = array - np.float32(1)
        if kind in NEIGHBOUR and part.split(".")[-1] in ("attn_q", "attn_k"):
            pairs = array.reshape(-1, head_dim // 2, 2, *array.shape[1:])
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        if part in WHOLE:
            found[f"{WHOLE[part]}.{end}"] = (fmt, array)
            continue
        if end in ("ssm_a", "bias") and kind == "qwen35":  # blk.N.ssm_a, blk.N.ssm_dt.bias
            own = "A_log" if end == "ssm_a" else "dt_bias"
            found[f"model.layers.{part.split('.')[1]}.linear_attn.{own}"] = (fmt, array)
            continue
        _, layer, inner = part.split(".")
        stack = array if "{}" in names[inner] else array[None]
        for expert, one in enumerate(stack):
            found[f"model.layers.{layer}.{names[inner].format(expert)}.{end}"] = (fmt, one)
    return found


def ungrouped(tiny: Tiny, tensors: Tensors) -> Tensors:
    """Recurrent layers as checkpoints hold them: value heads grouped by key head, and the logarithm of A."""
    heads, keys = tiny.extra["ssm.time_step_rank"], tiny.extra["ssm.group_count"]
    rest = 2 * keys * tiny.extra["ssm.state_size"]

    def untile(part: np.ndarray) -> np.ndarray:
        return part.reshape(heads // keys, keys, -1, *part.shape[1:]).swapaxes(0, 1).reshape(part.shape)

    found = {}
    for name, (fmt, array) in tensors.items():
        inner = name.split("linear_attn.")[-1].removesuffix(".weight")
        if inner in ("in_proj_z", "in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            array = untile(np.log(-array.astype(float)).astype(np.float32) if inner == "A_log" else array)
        elif inner in ("in_proj_qkv", "conv1d"):
            array = np.concatenate([array[:rest], untile(array[rest:])])
            array = array[:, None] if inner == "conv1d" else array
        elif inner == "out_proj":
            array = untile(array.T).T
        found[name] = (fmt, array)
    return found


def from_gguf(source: Path, target: Path, tokenizer: Path, **options: Any) -> Path:
    """The folder of a small ``llama`` file of F32 weights, with ``tokenizer`` as its tokenizer.json."""
    from rase.gguf.reader import GgufFile

    with GgufFile.open(source) as file:
        said = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
        weights = {
            name: ("F32", np.frombuffer(file.read(info), "<f4").reshape(info.shape))
            for name, info in file.tensors.items()
        }
    heads = said["attention.head_count"]
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": said["embedding_length"],
        "num_hidden_layers": said["block_count"], "num_attention_heads": heads,
        "num_key_value_heads": said["attention.head_count_kv"], "rope_theta": 10000.0,
        "intermediate_size": said["feed_forward_length"], "rms_norm_eps": 1e-12,
        "vocab_size": weights["token_embd.weight"][1].shape[0], "hidden_act": "silu",
        "max_position_embeddings": said["context_length"],
        "bos_token_id": said["tokenizer.ggml.bos_token_id"],
        "eos_token_id": said["tokenizer.ggml.eos_token_id"],
    }  # fmt: skip
    tensors = checkpoint_tensors("llama", config["hidden_size"] // heads, weights)
    table = {
        "chat_template": said.get("tokenizer.chat_template"),
        "bos_token": {"content": "<|begin_of_text|>"},
    }
    documents = {"tokenizer.json": tokenizer.read_text(), "tokenizer_config.json": table}
    return write_folder(target, config, tensors, **{"documents": documents, **options})


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> Path:
    """One file, tensors in the order given."""
    header, at = {}, 0
    for name, (dtype, array) in tensors.items():
        span = [at, at + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": span}
        at = span[1]
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for _, array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_folder(
    path: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    *,
    shards: int = 1,
    documents: Mapping[str, Any] = {},
) -> Path:
    """A folder of ``shards`` weight files; ``documents`` are further files: text, or values for JSON."""
    path.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors)
    else:
        names, owners = list(tensors), {}
        for number in range(shards):
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            own = names[number::shards]
            owners |= dict.fromkeys(own, file)
            write_safetensors(path / file, {name: tensors[name] for name in own})
        index = {"metadata": {"total_size": 0}, "weight_map": owners}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, content in {"config.json": config, **documents}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_text(text, encoding="utf-8")
    return path


def write_tiny(path: Path, name: str, tiny: Tiny, **options: Any) -> Path:
    """The folder of a model of the zoo."""
    tensors = state(tiny)
    if tiny.tied:
        assert "lm_head.weight" not in tensors
    return write_folder(path, committed(name)["config"], tensors, **options)
