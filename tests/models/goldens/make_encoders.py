"""Writes the hidden rows that ``transformers`` computes for the encoders of rase/testing/tiny_encoders.py.

As make.py, in the same environment: python -m tests.models.goldens.make_encoders [--compare]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel

from rase.testing.tiny_encoders import ENCODERS, GOLDEN_IDS, GOLDEN_ROWS, TinyEncoder

FOLDER = Path(__file__).parent / "encoders"
WHOLE = {
    "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings", "token_embd_norm": "embeddings.LayerNorm",
}  # fmt: skip
BERT = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
}  # fmt: skip
NOMIC = {
    "attn_output": "self_attn.o_proj", "attn_output_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "layer_output_norm": "post_mlp_layernorm",
}  # fmt: skip


def config_of(tiny: TinyEncoder) -> Any:
    """The configuration that a model's own checkpoint would have."""
    facts: dict[str, Any] = {
        "vocab_size": tiny.vocab, "hidden_size": tiny.dim, "intermediate_size": tiny.hidden,
        "num_hidden_layers": tiny.n_layers, "num_attention_heads": tiny.n_heads,
        "layer_norm_eps": tiny.eps, "max_position_embeddings": tiny.context, "type_vocab_size": 2,
    }  # fmt: skip
    if tiny.architecture == "nomic-bert":
        facts["rope_parameters"] = {"rope_type": "default", "rope_theta": tiny.theta}
        return AutoConfig.for_model("nomic_bert", **facts)
    return AutoConfig.for_model("bert", hidden_act="gelu", **facts)


def state_of(tiny: TinyEncoder) -> dict[str, torch.Tensor]:
    """The weights under the names of the checkpoint."""
    nomic = tiny.architecture == "nomic-bert"
    state: dict[str, torch.Tensor] = {}
    for name, array in tiny.source.floats().items():
        tensor = torch.from_numpy(array.astype(np.float64))
        part, end = name.rsplit(".", 1)
        if not part.startswith("blk."):
            state[f"{WHOLE[part]}.{end}"] = tensor
            continue
        _, layer, inner = part.split(".")
        if inner == "attn_qkv":
            for letter, rows in zip("qkv", tensor.chunk(3), strict=True):
                state[f"layers.{layer}.self_attn.{letter}_proj.weight"] = rows
        elif nomic:
            state[f"layers.{layer}.{NOMIC[inner]}.{end}"] = tensor
        else:
            state[f"encoder.layer.{layer}.{BERT[inner]}.{end}"] = tensor
    return state


def golden(tiny: TinyEncoder) -> np.ndarray:
    """Hidden rows (len(GOLDEN_ROWS), dim) as float32."""
    model = AutoModel.from_config(config_of(tiny), attn_implementation="eager").double().eval()
    missing = model.load_state_dict(state_of(tiny), strict=False)
    lost = [name for name in missing.missing_keys if "pooler" not in name and "inv_freq" not in name]
    if lost or missing.unexpected_keys:
        raise SystemExit(f"missing {lost}, unexpected {missing.unexpected_keys}")
    with torch.no_grad():
        hidden = model(torch.tensor([tiny.ids(GOLDEN_IDS)])).last_hidden_state[0]
    return hidden[list(GOLDEN_ROWS)].numpy().astype(np.float32)


def main(words: list[str]) -> None:
    for name, tiny in ENCODERS.items():
        found, path = golden(tiny), FOLDER / f"{name}.npy"
        if "--compare" not in words:
            FOLDER.mkdir(exist_ok=True)
            np.save(path, found)
            print(name)
            continue
        kept = np.load(path).astype(np.float64)
        error = float(((found - kept) ** 2).sum() / (kept**2).sum())
        print(f"{name}: NMSE {error:.1e}")
        if not error <= 1e-10:
            raise SystemExit(f"{name} differs from the committed golden")


if __name__ == "__main__":
    main(sys.argv[1:])
