"""Writes the logits that ``transformers`` computes for the models of rase/testing/tiny.py.

In an environment of its own, from the root of the repository:

    python -m venv /somewhere && /somewhere/bin/pip install torch==2.13.0 transformers==5.24.0 gguf
    /somewhere/bin/python -m tests.models.goldens.make [--compare] [NAME]...

With --compare nothing is written: it fails where a committed golden is further than float32 from a new one.

Weights go through the names and layouts of the models' own checkpoints: what the converters of GGUF files do
is undone here, independently of rase. Everything is float64 but what ``transformers`` keeps in float32
(rotary angles, the mean square of norms, softmax), so a golden is good to about 1e-13 of NMSE.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from rase.testing.tiny import GOLDEN_IDS, GOLDEN_ROWS, ZOO, Tiny
from tests.support import hf_folder

FOLDER = Path(__file__).parent


def config_of(tiny: Tiny) -> Any:
    """The configuration that a model's own checkpoint would have."""
    extra, kind = tiny.extra, tiny.architecture
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": tiny.theta}
    facts: dict[str, Any] = {
        "vocab_size": tiny.vocab, "hidden_size": tiny.dim, "intermediate_size": tiny.hidden,
        "num_hidden_layers": tiny.n_layers, "num_attention_heads": tiny.n_heads,
        "num_key_value_heads": tiny.n_kv_heads, "head_dim": tiny.head_dim, "rms_norm_eps": tiny.eps,
        "max_position_embeddings": tiny.context, "tie_word_embeddings": tiny.tied,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    if extra.get("rope.scaling.type") == "yarn":
        original = extra["rope.scaling.original_context_length"]
        rope |= {"rope_type": "yarn", "factor": extra["rope.scaling.factor"],
                 "original_max_position_embeddings": original}  # fmt: skip
    elif tiny.rope_scale != 1:
        rope |= {"rope_type": "linear", "factor": tiny.rope_scale}
    if kind == "llama" and tiny.n_experts:
        kind = "mixtral"
        facts |= {"num_local_experts": tiny.n_experts, "num_experts_per_tok": extra["expert_used_count"],
                  "sliding_window": tiny.window}  # fmt: skip
    elif kind == "llama" and tiny.window:
        kind = "mistral"
        facts["sliding_window"] = tiny.window
    elif kind == "qwen2":
        facts["use_sliding_window"] = False
    elif kind == "qwen3moe":
        kind = "qwen3_moe"
        facts |= {"num_experts": tiny.n_experts, "num_experts_per_tok": extra["expert_used_count"],
                  "moe_intermediate_size": tiny.hidden, "norm_topk_prob": True}  # fmt: skip
    elif kind == "gemma2":
        facts |= {"attn_logit_softcapping": extra["attn_logit_softcapping"], "sliding_window": tiny.window,
                  "final_logit_softcapping": extra["final_logit_softcapping"],
                  "query_pre_attn_scalar": tiny.head_dim,
                  "hidden_activation": "gelu_pytorch_tanh"}  # fmt: skip
    elif kind == "gemma3":
        kind = "gemma3_text"
        rope = {"full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}  # fmt: skip
        facts |= {"sliding_window": tiny.window, "query_pre_attn_scalar": tiny.head_dim,
                  "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention"
                                  for i in range(tiny.n_layers)]}  # fmt: skip
    elif kind == "phi3":
        facts |= {
            "sliding_window": tiny.window,
            "partial_rotary_factor": (tiny.rope_dim or tiny.head_dim) / tiny.head_dim,
        }
        if tiny.long_factors is not None:
            short, long = tiny.long_factors
            original = extra["rope.scaling.original_context_length"]
            rope |= {"rope_type": "longrope", "short_factor": list(short), "long_factor": list(long),
                     "original_max_position_embeddings": original}  # fmt: skip
            facts["original_max_position_embeddings"] = original
        rope["partial_rotary_factor"] = facts["partial_rotary_factor"]
    elif kind == "granite":
        facts |= {"embedding_multiplier": extra["embedding_scale"],
                  "residual_multiplier": extra["residual_scale"],
                  "attention_multiplier": extra["attention.scale"],
                  "logits_scaling": extra["logit_scale"]}  # fmt: skip
    elif kind == "olmo2" and tiny.window:
        kind = "olmo3"
        near = {"rope_type": "default", "rope_theta": tiny.theta}
        rope = {"full_attention": rope, "sliding_attention": near}
        facts |= {"sliding_window": tiny.window,
                  "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention"
                                  for i in range(tiny.n_layers)]}  # fmt: skip
    elif kind == "qwen35":
        kind = "qwen3_5_text"
        heads = extra["ssm.time_step_rank"]
        rope |= {"partial_rotary_factor": tiny.rope_dim / tiny.head_dim, "mrope_section": [2, 1, 1]}
        facts |= {"linear_conv_kernel_dim": extra["ssm.conv_kernel"],
                  "linear_key_head_dim": extra["ssm.state_size"],
                  "linear_value_head_dim": extra["ssm.inner_size"] // heads,
                  "linear_num_key_heads": extra["ssm.group_count"], "linear_num_value_heads": heads,
                  "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention"
                                  for i in range(tiny.n_layers)]}  # fmt: skip
    elif kind == "smollm3":
        facts |= {
            "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(tiny.n_layers)],
            "use_sliding_window": False,
        }
    return AutoConfig.for_model(kind, rope_parameters=rope, **facts)


def state_of(tiny: Tiny) -> dict[str, torch.Tensor]:
    """The weights under the names of the model in memory: those of the checkpoint, experts in stacks."""
    state = {
        name: torch.from_numpy(array.astype(np.float64)) for name, (_, array) in hf_folder.state(tiny).items()
    }
    if tiny.n_experts:
        state = {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in state.items()}
        state = {name: tensor for name, tensor in state.items() if ".experts." not in name}
        floats = tiny.source.floats()
        for i in range(tiny.n_layers):
            gate, up, down = (torch.from_numpy(floats[f"blk.{i}.ffn_{part}_exps.weight"].astype(np.float64))
                              for part in ("gate", "up", "down"))  # fmt: skip
            state[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], 1)
            state[f"model.layers.{i}.mlp.experts.down_proj"] = down
    if tiny.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def golden(tiny: Tiny) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits (len(GOLDEN_ROWS), vocab_size) as float32, and the folder that transformers writes."""
    config = config_of(tiny)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model = model.double().eval()
    if tiny.factors is not None:  # Llama 3.1's factors are numbers in the checkpoint's configuration
        factors = torch.tensor(tiny.factors, dtype=torch.float64)
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.double() / factors
    missing = model.load_state_dict(state_of(tiny), strict=False)
    lost = [name for name in missing.missing_keys if "inv_freq" not in name]
    if lost or missing.unexpected_keys:
        raise SystemExit(f"missing {lost}, unexpected {missing.unexpected_keys}")
    with torch.no_grad():
        logits = model(torch.tensor([tiny.ids(GOLDEN_IDS)]), use_cache=False).logits[0]
    return logits[list(GOLDEN_ROWS)].numpy().astype(np.float32), checkpoint_of(model)


def checkpoint_of(model: Any) -> dict[str, Any]:
    """config.json as it is written, and the shape of each tensor in the file."""
    with tempfile.TemporaryDirectory() as folder:
        model.float().save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    config.pop("transformers_version")
    return {"config": config, "tensors": shapes}


def main(words: list[str]) -> None:
    compare = "--compare" in words
    worst = 0.0
    checkpoints = json.loads(hf_folder.COMMITTED.read_text()) if hf_folder.COMMITTED.exists() else {}
    for name in [word for word in words if word != "--compare"] or ZOO:
        (found, checkpoint), path = golden(ZOO[name]), FOLDER / f"{name}.npy"
        if not compare:
            np.save(path, found)
            checkpoints[name] = checkpoint
            print(name)
            continue
        if checkpoints[name] != checkpoint:
            raise SystemExit(f"the folder of {name} differs from the committed one")
        kept = np.load(path).astype(np.float64)
        error = float(((found - kept) ** 2).sum() / (kept**2).sum())
        worst = max(worst, error)
        print(f"{name}: NMSE {error:.1e}")
        if not error <= 1e-10:
            raise SystemExit(f"{name} differs from the committed golden")
    if not compare:
        lines = (f'"{name}": {json.dumps(checkpoints[name], sort_keys=True)}' for name in sorted(checkpoints))
        hf_folder.COMMITTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    else:
        print(f"{len(ZOO)} models, largest NMSE {worst:.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
