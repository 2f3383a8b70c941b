"""What a GGUF file's metadata say of a decoder, as a ``ModelConfig``; keys.py reads and checks each of them.

Nothing is guessed: a value that rase does not run is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rase.errors import CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.graph.builder import Shaped
from rase.graph.ops import Causal, Mask, Rope, Window
from rase.models.keys import HINT, Keys
from rase.models.scaling import RopeScaling

__all__ = ["ModelConfig", "blk"]


def blk(layer: int, name: str) -> str:
    """The name of a tensor of one layer, as GGUF spells it."""
    return f"blk.{layer}.{name}"


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
    attn_scale: float  # scores are q · k times this
    rope_theta: float
    rope_dim: int  # elements of each head that turn
    rope_scaling: RopeScaling
    window: int | None  # sliding window in tokens
    n_experts: int

    @property
    def mask(self) -> Mask:
        """What a token sees in every layer of a model without layer types of its own."""
        return Causal() if self.window is None else Window(self.window)

    def rope(
        self,
        pairing: Literal["neighbour", "half"],
        *,
        theta: float | None = None,
        factors: str | None = None,
        scaled: bool = True,
    ) -> Rope:
        """The rotary embedding of the metadata, with another ``theta``, or without their scaling."""
        theta = self.rope_theta if theta is None else theta
        if not scaled:
            return Rope(theta, self.rope_dim, pairing)
        scaling = self.rope_scaling
        if scaling.long and factors is None:
            raise UnsupportedArchitecture(
                f"rope scaling 'longrope' in a file of '{self.architecture}' without its factors",
                expected="tensors 'rope_factors_long' and 'rope_factors_short'", found="none that it uses",
                hint="Use a file of this model without extended context.",
            )  # fmt: skip
        return Rope(theta, self.rope_dim, pairing, scale=scaling.linear, factors=factors,
                    attn_factor=scaling.attn_factor, yarn=scaling.yarn)  # fmt: skip

    def long_rope(self, has: Callable[[str], bool]) -> str | None:
        """The tensor of long-rope factors for this context, or None in a file without them.

        Fixed when the model is loaded (design rule R8): the short factors where the context that the manifest
        asks for is the original one or less, else the long ones (LongRoPE, arXiv 2402.13753).
        """
        if not (has("rope_factors_long") and has("rope_factors_short")):
            return None
        original = self.keys.integer("rope.scaling.original_context_length")
        return "rope_factors_long" if self.context_length > original else "rope_factors_short"

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
        *,
        encoder: bool = False,
    ) -> ModelConfig:
        """Read what all decoders and encoders share. ``context_length`` may lower the file's, never raise it.

        Raises ``CorruptModelFile``, ``UnsupportedArchitecture``, ``ManifestError``.
        """
        keys = Keys(metadata, architecture)
        n_layers, dim = keys.integer("block_count"), keys.integer("embedding_length")
        n_heads = keys.per_layer_integer("attention.head_count", n_layers)
        head_dim = keys.integer("attention.key_length", None)
        if head_dim is None:
            if dim % n_heads:
                raise keys.bad("attention.head_count", f"a divisor of embedding_length {dim}", n_heads)
            head_dim = dim // n_heads
        _refuse_variants(keys, head_dim, encoder)
        return cls(
            architecture=architecture, keys=keys, n_layers=n_layers, dim=dim,
            vocab_size=_vocab_size(tensors),
            context_length=_context_length(keys, context_length),
            hidden_dim=keys.per_layer_integer("feed_forward_length", n_layers),
            n_heads=n_heads, n_kv_heads=_n_kv_heads(keys, n_layers, n_heads), head_dim=head_dim,
            norm_eps=keys.number("attention.layer_norm_epsilon" if encoder
                                 else "attention.layer_norm_rms_epsilon"),
            attn_scale=keys.optional_number("attention.scale") or 1 / math.sqrt(head_dim),
            rope_theta=keys.number("rope.freq_base", 10000.0),
            rope_dim=_rope_dim(keys, head_dim), rope_scaling=RopeScaling.read(keys),
            window=keys.integer("attention.sliding_window", None, least=0) or None,
            n_experts=keys.integer("expert_count", 0, least=0),
        )  # fmt: skip


def _vocab_size(tensors: Mapping[str, Shaped]) -> int:
    found = tensors.get("token_embd.weight")
    if found is None or len(found.shape) != 2:
        raise CorruptModelFile(
            "tensor 'token_embd.weight'", expected="a matrix (vocab_size, dim)", hint=HINT,
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
        raise keys.bad("attention.head_count_kv", f"a divisor of head_count {n_heads}", n_kv_heads)
    return n_kv_heads


def _rope_dim(keys: Keys, head_dim: int) -> int:
    rope_dim: int = keys.integer("rope.dimension_count", head_dim)
    if rope_dim % 2 or rope_dim > head_dim:
        raise keys.bad("rope.dimension_count", f"an even number up to the head size {head_dim}", rope_dim)
    return rope_dim


def _refuse_variants(keys: Keys, head_dim: int, encoder: bool) -> None:
    """Keys that change what the layers compute and that no architecture here implements."""
    causal = keys.flag("attention.causal", True)
    if causal is encoder:
        ways = ("bidirectional attention", "causal attention")
        raise UnsupportedArchitecture(
            f"metadata key '{keys.architecture}.attention.causal' is {'true' if causal else 'false'}",
            expected=ways[not encoder],
            found=ways[causal],
            hint="The file holds a variant of this architecture that rase does not run.",
        )
    for name in ("attention.sliding_window", "expert_count") if encoder else ():
        if keys.integer(name, 0, least=0):
            raise UnsupportedArchitecture(
                f"metadata key '{keys.architecture}.{name}'", expected="0, or no such key",
                found=str(keys.integer(name)), hint="rase runs no encoder with windows or experts.",
            )  # fmt: skip
    value_length = keys.integer("attention.value_length", head_dim)
    if value_length != head_dim:
        raise UnsupportedArchitecture(
            f"metadata key '{keys.architecture}.attention.value_length'",
            expected=f"{head_dim}, the key length",
            found=str(value_length),
            hint="rase does not run heads whose keys and values differ in size.",
        )
