"""Which format each tensor gets: llama.cpp's mixes, so that a file has the size and quality people expect.

The ``_M`` mixes give the value projections and the down projections of the first and last eighth of the
layers, and of every third between, the next better format; the output matrix gets Q6_K in all but Q8_0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rase.gguf.formats import Format, TensorInfo, format_named

__all__ = ["MIXES", "Mix", "Model", "choose_format"]

FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Mix:
    """``base`` for most matrices, ``better`` for those that matter; ``file_type`` as llama.cpp counts."""

    base: str
    better: str
    file_type: int


MIXES = {
    "Q4_0": Mix("Q4_0", "Q4_0", 2),
    "Q8_0": Mix("Q8_0", "Q8_0", 7),
    "Q4_K_M": Mix("Q4_K", "Q6_K", 15),
    "Q5_K_M": Mix("Q5_K", "Q6_K", 17),
    "Q6_K": Mix("Q6_K", "Q6_K", 18),
}
# What takes the place of a format of 256-blocks where rows are no multiple of 256.
NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}

# Matrices that are too small or too sensitive, and those that are looked up, never multiplied.
KEPT = re.compile(
    r"_norm\.weight$|ffn_gate_inp\.weight$|ssm_conv1d\.weight$|position_embd\.weight$|token_types\.weight$"
    r"|altup|laurel|per_layer_model_proj|shortconv\.conv\.weight$|cls\.(output\.)?weight$"
)


@dataclass(frozen=True)
class Model:
    """What a mix looks at."""

    layers: int
    experts: int
    shares_values: bool  # 80 layers whose query heads share values: those get more bits
    has_output: bool  # an output matrix of its own
    value_layers: tuple[int, ...]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], names: Any) -> Model:
        """From the metadata and the tensor names of a GGUF file; numbers that are absent count as 0."""
        arch = metadata.get("general.architecture", "")

        def number(key: str) -> int:
            value = metadata.get(f"{arch}.{key}", 0)
            return value if isinstance(value, int) else 0

        layers, heads = number("block_count"), number("attention.head_count")
        shares = layers == 80 and arch in ("llama", "qwen2") and heads != number("attention.head_count_kv")
        matches = (re.fullmatch(r"blk\.(\d{1,6})\.attn_(?:v|qkv)\.weight", name) for name in names)
        found = sorted({int(match[1]) for match in matches if match})
        return cls(layers, number("expert_count"), shares, "output.weight" in names, tuple(found))


def choose_format(info: TensorInfo, mix: Mix, model: Model) -> Format:
    """The format that ``mix`` gives the tensor; float weights that it does not quantize become float32."""
    name = info.name
    if info.format.name not in FLOATS:
        return info.format
    if len(info.shape) < 2 or not name.endswith("weight") or KEPT.search(name):
        return format_named("F32")
    wanted, cols = _wanted(name, mix, model, info.shape[-1]), info.shape[-1]
    if cols % format_named(wanted).block_size:
        wanted = NARROW.get(wanted, "F16")
    if cols % format_named(wanted).block_size:
        wanted = "F16"
    return format_named(wanted)


def _wanted(name: str, mix: Mix, model: Model, cols: int) -> str:
    if name == "output.weight" or (name == "token_embd.weight" and not model.has_output):
        return "Q8_0" if mix.base == "Q8_0" or cols % 256 else "Q6_K"
    layer = re.match(r"blk\.(\d{1,6})\.(.*)\.weight$", name)
    part = layer[2] if layer else ""
    if part == "attn_v" and layer:
        if model.experts == 8:
            return "Q8_0"
        found = model.value_layers.index(int(layer[1]))
        wanted = mix.better if _matters(found, len(model.value_layers)) else mix.base
        return "Q5_K" if model.shares_values and wanted == "Q4_K" else wanted
    if part == "attn_k" and model.experts == 8:
        return "Q8_0"
    if part == "attn_qkv":
        return {"Q4_K": "Q5_K", "Q5_K": "Q6_K"}.get(mix.base, mix.base)
    if part == "attn_output" and model.experts == 8 and mix.base == "Q4_K":
        return "Q5_K"
    if part.startswith("ffn_down") and layer:
        return mix.better if _matters(int(layer[1]), model.layers) else mix.base
    return mix.base


def _matters(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third layer between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
