"""Writes the logits that ``transformers`` computes for the models of tests/support/tiny.py.

In an environment of its own, from the root of the repository:

    python -m venv /somewhere && /somewhere/bin/pip install torch==2.13.0 transformers==5.24.0 gguf
    /somewhere/bin/python -m tests.models.goldens.make [--compare] [NAME]...

With --compare nothing is written: it fails where a committed golden is further than float32 from a new one.

Weights go through the names and layouts of the models' own checkpoints: what the converters of GGUF files do
is undone here, independently of rase. Everything is float64 but what ``transformers`` keeps in float32
(rotary angles, the mean square of norms, softmax), so a golden is good to about 1e-13 of NMSE.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.tiny import GOLDEN_IDS, GOLDEN_ROWS, ZOO, Tiny

FOLDER = Path(__file__).parent
NEIGHBOUR = ("llama", "granite", "smollm3", "mixtral")  # files hold permuted query and key rows
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OWN_NAMES: dict[str, dict[str, str]] = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "olmo2": {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
OWN_NAMES["gemma2"] = OWN_NAMES["gemma3"] = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip


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
    elif kind == "smollm3":
        facts |= {
            "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(tiny.n_layers)],
            "use_sliding_window": False,
        }
    return AutoConfig.for_model(kind, rope_parameters=rope, **facts)


def state_of(tiny: Tiny, kind: str) -> dict[str, torch.Tensor]:
    """The weights under the names of the checkpoint, in its layouts."""
    state: dict[str, torch.Tensor] = {}
    names = NAMES | OWN_NAMES.get(tiny.architecture, {})
    for name, array in tiny.source.floats().items():
        tensor = torch.from_numpy(array.astype(np.float64))
        if tiny.architecture.startswith("gemma") and "norm" in name:
            tensor = tensor - 1
        if tiny.architecture in NEIGHBOUR and name.split(".")[-2] in ("attn_q", "attn_k"):
            tensor = (
                tensor.reshape(-1, tiny.head_dim // 2, 2, *tensor.shape[1:])
                .transpose(1, 2)
                .reshape(tensor.shape)
            )
        part, end = name.rsplit(".", 1)
        if not name.startswith("blk."):
            whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
            if part in whole:
                state[f"{whole[part]}.{end}"] = tensor
            continue
        _, layer, inner = part.split(".")
        if "exps" in inner:
            continue
        if inner == "ffn_gate_inp":
            state[f"model.layers.{layer}.mlp.gate.weight"] = tensor
        else:
            state[f"model.layers.{layer}.{names[inner]}.{end}"] = tensor
    if tiny.n_experts:
        floats = tiny.source.floats()
        for i in range(tiny.n_layers):
            gate, up, down = (torch.from_numpy(floats[f"blk.{i}.ffn_{part}_exps.weight"].astype(np.float64))
                              for part in ("gate", "up", "down"))  # fmt: skip
            state[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], 1)
            state[f"model.layers.{i}.mlp.experts.down_proj"] = down
    if tiny.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def golden(tiny: Tiny) -> np.ndarray:
    """Logits (len(GOLDEN_ROWS), vocab_size) as float32."""
    config = config_of(tiny)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    model = model.double().eval()
    if tiny.factors is not None:  # Llama 3.1's factors are numbers in the checkpoint's configuration
        factors = torch.tensor(tiny.factors, dtype=torch.float64)
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.double() / factors
    state = state_of(tiny, config.model_type)
    missing = model.load_state_dict(state, strict=False)
    lost = [name for name in missing.missing_keys if "inv_freq" not in name]
    if lost or missing.unexpected_keys:
        raise SystemExit(f"missing {lost}, unexpected {missing.unexpected_keys}")
    with torch.no_grad():
        logits = model(torch.tensor([tiny.ids(GOLDEN_IDS)]), use_cache=False).logits[0]
    return logits[list(GOLDEN_ROWS)].numpy().astype(np.float32)


def main(words: list[str]) -> None:
    compare = "--compare" in words
    worst = 0.0
    for name in [word for word in words if word != "--compare"] or ZOO:
        found, path = golden(ZOO[name]), FOLDER / f"{name}.npy"
        if not compare:
            np.save(path, found)
            print(name)
            continue
        kept = np.load(path).astype(np.float64)
        error = float(((found - kept) ** 2).sum() / (kept**2).sum())
        worst = max(worst, error)
        print(f"{name}: NMSE {error:.1e}")
        if not error <= 1e-10:
            raise SystemExit(f"{name} differs from the committed golden")
    if compare:
        print(f"{len(ZOO)} models, largest NMSE {worst:.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
