"""Reads a GGUF file's metadata into a ``ModelConfig``, with types and ranges checked.

Every key that is absent, of another type or out of range raises a typed error that names the key, what was
expected and what was found. Nothing is guessed: a value that rase does not run is refused by name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rase.errors import CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.graph.builder import Shaped
from rase.graph.ops import Causal, Mask, Window

__all__ = ["Keys", "ModelConfig", "blk"]

_REQUIRED: Any = object()
_HINT = "The file's metadata are damaged or were written for another model."


def blk(layer: int, name: str) -> str:
    """The name of a tensor of one layer, as GGUF spells it."""
    return f"blk.{layer}.{name}"


class Keys:
    """Typed reads of ``<architecture>.<name>`` keys. A read without a default requires the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def integer(self, name: str, default: Any = _REQUIRED, *, least: int = 1) -> Any:
        """An integer of at least ``least``, or ``default``."""
        value = self._find(name, default, "an integer")
        if value is default:
            return default
        return self._integer(name, value, least)

    def per_layer_integer(self, name: str, n_layers: int, default: Any = _REQUIRED) -> Any:
        """An integer, also where a file writes one for each layer; refused by name when they differ."""
        value = self._find(name, default, "an integer")
        if value is default or not hasattr(value, "__len__") or isinstance(value, str):
            return default if value is default else self._integer(name, value, 1)
        values = [self._integer(name, item, 1) for item in value]
        if len(values) != n_layers:
            raise self._bad(name, f"{n_layers} values, one per layer", f"{len(values)} values")
        if len(set(values)) != 1:
            raise UnsupportedArchitecture(
                f"metadata key '{self._key(name)}' differs between layers",
                expected="one value for all layers",
                found=", ".join(map(str, values[:8])),
                hint="rase does not run models whose layers differ in size.",
            )
        return values[0]

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite float above zero, or ``default``."""
        value = self._find(name, default, "a number")
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(name, "a number", f"{type(value).__name__} {value!r:.60}")
        if not (math.isfinite(value) and value > 0):
            raise self._bad(name, "a finite number above 0", value)
        return float(value)

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A string, or ``default``."""
        value = self._find(name, default, "a string")
        if value is not default and not isinstance(value, str):
            raise self._bad(name, "a string", f"{type(value).__name__} {value!r:.60}")
        return value

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        """A boolean, or ``default``."""
        value = self._find(name, default, "a boolean")
        if value is not default and not isinstance(value, bool):
            raise self._bad(name, "a boolean", f"{type(value).__name__} {value!r:.60}")
        return value

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def _find(self, name: str, default: Any, expected: str) -> Any:
        value = self.metadata.get(self._key(name), default)
        if value is _REQUIRED:
            raise CorruptModelFile(
                f"metadata key '{self._key(name)}' is missing", expected=expected, found="no such key",
                hint=_HINT, key=self._key(name),
            )  # fmt: skip
        return value

    def _integer(self, name: str, value: Any, least: int) -> int:
        try:  # an array of numbers has __index__, too, and refuses only when it is asked
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise self._bad(name, "an integer", f"{type(value).__name__} {value!r:.60}")
        if not least <= number < 2**31:
            raise self._bad(name, f"an integer from {least} to 2147483647", number)
        return number

    def _bad(self, name: str, expected: str, found: object) -> CorruptModelFile:
        key = self._key(name)
        return CorruptModelFile(f"metadata key '{key}'", expected=expected, found=found, hint=_HINT, key=key)


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and constants of a decoder. ``keys`` reads what only one architecture knows."""

    architecture: str
    keys: Keys
    vocab_size: int  # rows of token_embd, which may be padded beyond the tokenizer
    context_length: int  # the smaller of the file's and the manifest's
    n_layers: int
    dim: int
    hidden_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_dim: int  # elements of each head that turn
    rope_scale: float  # positions are divided by it
    window: int | None  # sliding window in tokens
    n_experts: int

    @property
    def mask(self) -> Mask:
        """What a token sees in every layer of a model without layer types of its own."""
        return Causal() if self.window is None else Window(self.window)

    @property
    def sizes(self) -> dict[str, int]:
        """The length of each named axis, for the graph builder."""
        return {
            "vocab": self.vocab_size, "dim": self.dim, "hidden": self.hidden_dim,
            "heads": self.n_heads * self.head_dim, "kv_heads": self.n_kv_heads * self.head_dim,
        }  # fmt: skip

    @classmethod
    def read(
        cls,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Shaped],
        architecture: str,
        context_length: int | None = None,
    ) -> ModelConfig:
        """Read what all decoders share. ``context_length`` may lower the file's, never raise it.

        Raises ``CorruptModelFile``, ``UnsupportedArchitecture``, ``ManifestError``.
        """
        keys = Keys(metadata, architecture)
        n_layers, dim = keys.integer("block_count"), keys.integer("embedding_length")
        n_heads = keys.per_layer_integer("attention.head_count", n_layers)
        head_dim = keys.integer("attention.key_length", None)
        if head_dim is None:
            if dim % n_heads:
                raise keys._bad("attention.head_count", f"a divisor of embedding_length {dim}", n_heads)
            head_dim = dim // n_heads
        _refuse_variants(keys, head_dim)
        return cls(
            architecture=architecture, keys=keys, n_layers=n_layers, dim=dim,
            vocab_size=_vocab_size(tensors),
            context_length=_context_length(keys, context_length),
            hidden_dim=keys.per_layer_integer("feed_forward_length", n_layers),
            n_heads=n_heads, n_kv_heads=_n_kv_heads(keys, n_layers, n_heads), head_dim=head_dim,
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope_theta=keys.number("rope.freq_base", 10000.0),
            rope_dim=_rope_dim(keys, head_dim), rope_scale=_rope_scale(keys),
            window=keys.integer("attention.sliding_window", None, least=0) or None,
            n_experts=keys.integer("expert_count", 0, least=0),
        )  # fmt: skip


def _vocab_size(tensors: Mapping[str, Shaped]) -> int:
    found = tensors.get("token_embd.weight")
    if found is None or len(found.shape) != 2:
        raise CorruptModelFile(
            "tensor 'token_embd.weight'", expected="a matrix (vocab_size, dim)", hint=_HINT,
            found="no such tensor" if found is None else f"shape {tuple(found.shape)}",
        )  # fmt: skip
    return found.shape[0]


def _context_length(keys: Keys, wanted: int | None) -> int:
    own: int = keys.integer("context_length")
    if wanted is None:
        return own
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= own:
        raise ManifestError(
            "context_length does not fit the model", expected=f"1 to {own}", found=f"{wanted!r:.80}",
            hint=f"Register the model again with --context-length {own} or less, or without it.",
        )  # fmt: skip
    return wanted


def _n_kv_heads(keys: Keys, n_layers: int, n_heads: int) -> int:
    n_kv_heads: int = keys.per_layer_integer("attention.head_count_kv", n_layers, n_heads)
    if n_heads % n_kv_heads:
        raise keys._bad("attention.head_count_kv", f"a divisor of head_count {n_heads}", n_kv_heads)
    return n_kv_heads


def _rope_dim(keys: Keys, head_dim: int) -> int:
    rope_dim: int = keys.integer("rope.dimension_count", head_dim)
    if rope_dim % 2 or rope_dim > head_dim:
        raise keys._bad("rope.dimension_count", f"an even number up to the head size {head_dim}", rope_dim)
    return rope_dim


def _rope_scale(keys: Keys) -> float:
    """The factor of linear scaling. A file may write the factor alone: without a type it is linear."""
    kind = keys.text("rope.scaling.type", "linear")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise UnsupportedArchitecture(
            f"rope scaling '{kind}' is not supported", expected="'none' or 'linear'", found=repr(kind),
            hint="Use a file of this model without extended context.",
        )  # fmt: skip
    scale: float = keys.number("rope.scaling.factor", None) or keys.number("rope.scale_linear", 1.0)
    return scale


def _refuse_variants(keys: Keys, head_dim: int) -> None:
    """Keys that change what the layers compute and that no architecture here implements."""
    if not keys.flag("attention.causal", True):
        raise UnsupportedArchitecture(
            f"metadata key '{keys.architecture}.attention.causal' is false",
            expected="a causal decoder",
            found="bidirectional attention",
            hint="This file is an embedding model: rase runs generative ones.",
        )
    value_length = keys.integer("attention.value_length", head_dim)
    if value_length != head_dim:
        raise UnsupportedArchitecture(
            f"metadata key '{keys.architecture}.attention.value_length'",
            expected=f"{head_dim}, the key length",
            found=str(value_length),
            hint="rase does not run heads whose keys and values differ in size.",
        )
