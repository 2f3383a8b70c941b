"""How a file stretches its rotary embedding over a longer context than it was first trained with."""

from __future__ import annotations

from dataclasses import dataclass

from rase.errors import UnsupportedArchitecture
from rase.graph.ops import Yarn
from rase.models.keys import Keys

__all__ = ["RopeScaling"]


@dataclass(frozen=True)
class RopeScaling:
    """``linear`` divides positions; ``attn_factor`` multiplies cosine and sine, beside YaRN's own factor.

    ``long`` says that the file's scaling is long rope, which means nothing without its tensors of factors.
    """

    linear: float = 1.0
    attn_factor: float = 1.0
    yarn: Yarn | None = None
    long: bool = False

    @classmethod
    def read(cls, keys: Keys) -> RopeScaling:
        """From ``rope.scaling.*``. A file may write a factor alone: without a type it is linear.

        Of long rope ("longrope") the metadata say at most the attention factor: the rest are tensors.
        """
        kind = keys.text("rope.scaling.type", "linear")
        attn_factor = keys.number("rope.scaling.attn_factor", 1.0)
        factor = keys.optional_number("rope.scaling.factor")
        if kind == "none":
            return cls()
        if kind == "linear":
            return cls(linear=factor or keys.number("rope.scale_linear", 1.0), attn_factor=attn_factor)
        if kind == "longrope":
            return cls(attn_factor=attn_factor, long=True)
        if kind == "yarn":
            return cls(attn_factor=attn_factor * keys.number("rope.scaling.yarn_attn_factor", 1.0),
                       yarn=_yarn(keys))  # fmt: skip
        raise UnsupportedArchitecture(
            f"rope scaling '{kind:.40}' is not supported", found=repr(kind)[:60],
            expected="'none', 'linear', 'yarn' or 'longrope'",
            hint="Use a file of this model without extended context.",
        )  # fmt: skip


def _yarn(keys: Keys) -> Yarn:
    if keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedArchitecture(
            f"metadata key '{keys.architecture}.rope.scaling.yarn_ext_factor'", expected="1", found="another",
            hint="Use a file of this model without extended context.",
        )  # fmt: skip
    factor = keys.number("rope.scaling.factor")
    if factor < 1:
        raise keys.bad("rope.scaling.factor", "at least 1", factor)
    return Yarn(
        factor=factor,
        original_context=keys.integer("rope.scaling.original_context_length"),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
