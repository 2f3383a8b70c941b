"""``Config``: typed reads of a config.json, and the metadata that a GGUF file of the model would have."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from rase.checkpoint.mapping import KEYS, Checkpoint
from rase.errors import CorruptModelFile, UnsupportedArchitecture
from rase.gguf.files import InputFile

__all__ = ["Config", "as_stored", "context_length", "log", "read_metadata", "rope_kind", "rope_tables"]

_REQUIRED: Any = object()
_OLDER = "Use a folder of this model without extended context, or a GGUF file of it."


class Config:
    """The values of a config.json; null counts as absent. A read without a default requires the key."""

    def __init__(self, values: Mapping[str, Any], file: InputFile) -> None:
        self.values, self.file = values, file

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        """A whole number from 0 to 2147483647."""
        return self._typed(name, default, "a whole number", lambda v: type(v) is int and 0 <= v < 2**31)

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite number above 0."""
        value = self._typed(name, default, "a number above 0", _is_number)
        return float(value) if _is_number(value) else value

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        return self._typed(name, default, "true or false", lambda v: isinstance(v, bool))

    def table(self, name: str) -> Mapping[str, Any]:
        """An object; empty where there is none."""
        return self._typed(name, {}, "an object", lambda v: isinstance(v, dict))  # type: ignore[no-any-return]

    def inside(self, table: Mapping[str, Any]) -> Config:
        """The same reads of an object in this one."""
        return Config(table, self.file)

    def expect(self, name: str, value: Any) -> None:
        """Raise ``UnsupportedArchitecture`` where the key is there with another value."""
        found = self.values.get(name)
        if found is not None and found != value:
            raise UnsupportedArchitecture(
                f"'{self.file.path}': key '{name}'", expected=repr(value), found=f"{found!r:.80}",
                hint="The folder holds a variant of this architecture that rase does not run.",
            )  # fmt: skip

    @property
    def head_dim(self) -> int:
        heads = self.integer("num_attention_heads")
        size: int = self.integer("head_dim", None) or self.integer("hidden_size") // max(heads, 1)
        return size

    def bad(self, name: str, expected: str, found: object) -> CorruptModelFile:
        return self.file.corrupt(f"key '{name}'", expected=expected, found=f"{found!r:.80}", key=name)

    def _typed(self, name: str, default: Any, expected: str, fits: Any) -> Any:
        value = self.get(name, default)
        if value is _REQUIRED:
            raise self.file.corrupt(
                f"key '{name}' is missing", expected=expected, found="no such key", key=name
            )
        if value is not default and not fits(value):
            raise self.bad(name, expected, value)
        return value


def read_metadata(config: Config, checkpoint: Checkpoint, architecture: str) -> dict[str, Any]:
    """The metadata of ``config``, with floats as float32, which is how a GGUF file holds them.

    Raises ``CorruptModelFile`` and ``UnsupportedArchitecture``. Long rope and Llama 3's scaling are tensors
    of factors: ``rase.checkpoint.rope``.
    """
    for name, value in {"hidden_act": "silu", **checkpoint.expect}.items():
        config.expect(name, value)
    own: dict[str, Any] = {}
    for key, names in {**KEYS, **checkpoint.keys}.items():
        name = next((name for name in names.split("|") if config.get(name) is not None), names)
        own[key] = config.get(name)
        if not _is_number(own[key]):
            raise config.bad(name, f"a number above 0, for '{key}'", own[key])
    heads = config.integer("num_attention_heads")
    own |= {
        "vocab_size": config.integer("vocab_size"),
        "attention.head_count_kv": config.integer("num_key_value_heads", heads),
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
    }  # fmt: skip
    own |= _rope(config) | _window(config, checkpoint.period)
    if checkpoint.more is not None:
        own |= checkpoint.more(config)
    prefixed = {f"{architecture}.{key}": as_stored(value) for key, value in own.items() if value is not None}
    return {"general.architecture": architecture, **prefixed}


def rope_tables(config: Config) -> tuple[Config, Config | None]:
    """What config.json says of the rotary embedding: of all layers, and of window layers where that differs.

    Newer folders have "rope_parameters", one or one per type of layer; older ones "rope_theta" beside
    "rope_scaling".
    """
    newer = config.table("rope_parameters")
    if "full_attention" in newer:
        both = (config.inside(newer).table(name) for name in ("full_attention", "sliding_attention"))
        full, near = (config.inside(table) for table in both)
        near.expect("rope_type", "default")
        return full, near
    table = dict(newer or config.table("rope_scaling"))
    table.setdefault("rope_theta", config.get("rope_theta"))
    local = config.get("rope_local_base_freq")
    return config.inside(table), None if local is None else config.inside({"rope_theta": local})


def rope_kind(rope: Config) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def context_length(config: Config) -> int:
    """Positions that the model takes: with YaRN all that it stretches to, whatever the folder names first."""
    own: int = config.integer("max_position_embeddings")
    rope, _ = rope_tables(config)
    if rope_kind(rope) != "yarn":
        return own
    return max(own, int(rope.number("factor") * rope.integer("original_max_position_embeddings", own)))


def _rope(config: Config) -> dict[str, Any]:
    full, near = rope_tables(config)
    kind = rope_kind(full)
    own: dict[str, Any] = {
        "context_length": context_length(config), "rope.freq_base": full.number("rope_theta", 10000.0),
        "rope.freq_base_swa": None if near is None else near.number("rope_theta"),
    }  # fmt: skip
    part = full.number("partial_rotary_factor", None) or config.number("partial_rotary_factor", 1.0)
    own["rope.dimension_count"] = int(config.head_dim * part)
    if kind == "linear":
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": full.number("factor")}
    elif kind == "yarn":
        own |= _yarn(config, full)
    elif kind not in ("default", "llama3", "longrope", "su"):
        raise UnsupportedArchitecture(
            f"'{config.file.path}': rope scaling '{kind:.40}' is not supported", found=repr(kind)[:60],
            expected="default, linear, yarn, llama3 or longrope", hint=_OLDER,
        )  # fmt: skip
    return own


def _yarn(config: Config, rope: Config) -> dict[str, Any]:
    for name, value in (("truncate", True), ("mscale", 1), ("mscale_all_dim", None)):
        rope.expect(name, value)
    factor = rope.number("factor")
    attention = rope.number("attention_factor", None)
    usual = 0.1 * log(factor) + 1  # what the graph multiplies by itself
    return {
        "rope.scaling.type": "yarn", "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": rope.integer(
            "original_max_position_embeddings", config.integer("max_position_embeddings")),
        "rope.scaling.yarn_beta_fast": rope.number("beta_fast", None),
        "rope.scaling.yarn_beta_slow": rope.number("beta_slow", None),
        "rope.scaling.yarn_attn_factor": attention if attention is None else attention / usual,
    }  # fmt: skip


def _window(config: Config, period: int) -> dict[str, Any]:
    """The window and, where layers differ, which of them have it."""
    window = config.integer("sliding_window", None)
    if not window or not config.flag("use_sliding_window", True):
        return {}
    types, n_layers = config.get("layer_types"), config.integer("num_hidden_layers")
    every = config.integer("sliding_window_pattern", None)  # how Gemma 3 said it first
    if types is None and every and every != period:
        return {"attention.sliding_window": window, "attention.sliding_window_pattern": every}
    if types is None and config.get("max_window_layers") is not None:
        first = config.integer("max_window_layers")
        types = ["full_attention" if i < first else "sliding_attention" for i in range(n_layers)]
    if types is None:
        return {"attention.sliding_window": window}
    kinds = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != n_layers or not all(kind in kinds for kind in types):
        raise config.bad("layer_types", f"{n_layers} of " + ", ".join(kinds), types)
    local = [kind == kinds[1] for kind in types]
    if not any(local):
        return {}
    usual = [bool(period) and (i + 1) % period != 0 for i in range(n_layers)]
    pattern = None if local == usual or (all(local) and not period) else local
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}


def log(value: float) -> float:
    """The natural logarithm with the bits of every machine (design rule R6)."""
    import numpy as np

    from rase._kernels import mathfn

    out = np.empty(1)
    mathfn.log(np.array([value], float), out)
    return float(out[0])


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def as_stored(value: Any) -> Any:
    """A value as a GGUF file would hold it: floats as float32, lists of flags or whole numbers as arrays."""
    if isinstance(value, list):
        import numpy as np

        return np.array(value, dtype=bool if all(isinstance(one, bool) for one in value) else np.int32)
    return struct.unpack("<f", struct.pack("<f", value))[0] if isinstance(value, float) else value
