"""Weights that a file holds in parts: old Mixtral files have one matrix per expert, not one stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rase.errors import UnsupportedFormat

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.graph.ops import Graph

__all__ = ["file_names", "weight_infos"]


def weight_infos(graph: Graph, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Format, shape and bytes of every weight of ``graph``; a stack's are those of its parts together.

    Raises ``UnsupportedFormat`` where the parts of one stack have different formats.
    """
    infos = {}
    for name, weight in graph.weights.items():
        if not weight.parts:
            infos[name] = tensors[name]
            continue
        parts = [tensors[part] for part in weight.parts]
        formats = sorted({part.format.name for part in parts})
        if len(formats) > 1:
            raise UnsupportedFormat(
                f"the experts '{weight.parts[0]}' and on have different formats", found=", ".join(formats),
                expected="one for all", hint="Use a newer GGUF file of this model, with stacked experts.",
            )  # fmt: skip
        infos[name] = replace(parts[0], name=name, shape=weight.shape, nbytes=sum(p.nbytes for p in parts))
    return infos


def file_names(graph: Graph) -> dict[str, tuple[str, int]]:
    """The tensors that a source must deliver -> the weight that each belongs to, and its place in it."""
    found = {}
    for name, weight in graph.weights.items():
        found.update({part: (name, place) for place, part in enumerate(weight.parts or (name,))})
    return found
