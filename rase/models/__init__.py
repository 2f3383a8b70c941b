"""Finds architectures by scanning this package, resolves their aliases and builds their graphs.

An architecture is one file here. It exports ``NAMES`` (values of GGUF's ``general.architecture``),
``CHAT_TEMPLATE`` (the template of a file that has none, or None), ``ALIASES`` (further names that a user may
say, each with its template) and ``build(cfg, g)``, which writes the forward pass onto the builder ``g``. An
encoder, whose tokens see what follows them and which has no logits, also exports ``ENCODER = True``.
``CHECKPOINTS``, where it has any, say how folders of safetensors files hold the same models.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from rase.checkpoint.mapping import Checkpoint
from rase.errors import CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.graph.builder import GraphBuilder, Shaped
from rase.graph.ops import Graph
from rase.models.config import ModelConfig

__all__ = ["Architecture", "build", "checkpoints", "kind_of", "names", "pooling", "resolve"]

_SHARED = "its layers have an expert that every token takes through a gate, which rase does not run"
# Architectures that people ask for and that are refused for a reason worth saying.
_REFUSED = {
    "phi": (
        "its files fuse matrices and scale positions in ways that differ between versions, "
        "and reading one as another gives fluent, wrong text",
        "Use a Phi-3 GGUF instead.",
    ),
    "qwen35moe": (_SHARED, "Use a dense Qwen3.5 model, or a mixture of Qwen3 ('qwen3moe')."),
    "qwen3next": (_SHARED, "Use a dense Qwen3.5 model, or a mixture of Qwen3 ('qwen3moe')."),
}


@dataclass(frozen=True)
class Architecture:
    """What a name or an alias means: the GGUF name, the module that builds it, its default chat template."""

    name: str
    module: ModuleType
    chat_template: str | None


def names() -> tuple[str, ...]:
    """Every name and alias that ``resolve`` accepts, sorted."""
    return tuple(sorted(_table()))


def checkpoints() -> dict[str, tuple[str, Checkpoint]]:
    """For each value of "architectures" in a config.json: the GGUF name, and what its folders are like."""
    found: dict[str, tuple[str, Checkpoint]] = {}
    for architecture in _table().values():
        for checkpoint in getattr(architecture.module, "CHECKPOINTS", ()):
            found[checkpoint.name] = (architecture.module.NAMES[0], checkpoint)
    return found


def resolve(alias: str) -> Architecture:
    """The architecture that a GGUF name or an alias stands for. Raises ``UnsupportedArchitecture``."""
    table = _table()
    if not isinstance(alias, str):
        raise UnsupportedArchitecture(
            "an architecture", expected="one of " + ", ".join(sorted(table)), found=f"{alias!r:.80}"
        )
    if alias in table:
        return table[alias]
    known = "one of " + ", ".join(sorted(table))
    for prefix, (reason, hint) in _REFUSED.items():
        if alias.startswith(prefix):
            raise UnsupportedArchitecture(
                f"architecture '{alias}' is not supported: {reason}",
                expected=known,
                hint=hint,
                architecture=alias,
            )
    close = difflib.get_close_matches(alias, table, n=1)
    raise UnsupportedArchitecture(
        "unsupported architecture", expected=known, found=f"{alias!r:.80}",
        hint=f"Did you mean '{close[0]}'?" if close else "Choose a GGUF file of a supported architecture.",
        architecture=alias,
    )  # fmt: skip


def build(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Shaped],
    architecture: str | None = None,
    context_length: int | None = None,
    kind: Literal["generator", "embedding"] = "generator",
) -> Graph:
    """The graph of a GGUF file, from its metadata and its tensors' shapes alone.

    ``architecture``, ``context_length`` and ``kind`` are the manifest's; one that contradicts the file raises
    ``ManifestError``. Also raises ``UnsupportedArchitecture`` and ``CorruptModelFile``.
    """
    own = metadata.get("general.architecture")
    if not isinstance(own, str):
        raise CorruptModelFile(
            "metadata key 'general.architecture'", expected="a string",
            found="no such key" if own is None else f"{type(own).__name__} {own!r:.60}",
            hint="This is not a GGUF file of a model.",
        )  # fmt: skip
    found = resolve(own)
    if architecture is not None:
        wanted = resolve(architecture)
        if wanted.module is not found.module or (architecture in wanted.module.NAMES and architecture != own):
            raise ManifestError(
                "the manifest's architecture is not the file's", expected=repr(own), found=repr(architecture),
                hint=f"Register the model again with --architecture {own}, or without it.",
            )  # fmt: skip
    encoder = getattr(found.module, "ENCODER", False)
    if kind == "embedding":
        pooling(metadata)  # a file that does not say how is refused now
    if encoder and kind == "generator":
        raise ManifestError(
            f"architecture '{own}' makes embeddings and no text", expected="kind embedding",
            found=f"kind {kind}", hint="Register the model again with --kind embedding.",
        )  # fmt: skip
    cfg = ModelConfig.read(metadata, tensors, own, context_length, encoder=encoder)
    g = GraphBuilder(tensors, architecture=own, sizes=cfg.sizes, context_length=cfg.context_length,
                     embedding=kind == "embedding")  # fmt: skip
    found.module.build(cfg, g)
    cfg.keys.refuse_unread()
    return g.finish()


def kind_of(metadata: Mapping[str, Any]) -> Literal["generator", "embedding"]:
    """What a file is for: its architecture is an encoder, or it says how to pool rows into one."""
    own = metadata.get("general.architecture")
    found = _table().get(own) if isinstance(own, str) else None
    encoder = found is not None and getattr(found.module, "ENCODER", False)
    return "embedding" if encoder or metadata.get(f"{own}.pooling_type") else "generator"


def pooling(metadata: Mapping[str, Any]) -> Literal["mean", "cls", "last"]:
    """How a file wants its rows to become one vector. Raises ``UnsupportedArchitecture``."""
    key = f"{metadata.get('general.architecture')}.pooling_type"
    value = metadata.get(key)
    number = value if type(value) is int else -1
    ways: dict[int, Literal["mean", "cls", "last"]] = {1: "mean", 2: "cls", 3: "last"}
    if number not in ways:
        others = {0: "none", 4: "a ranking of pairs"}
        raise UnsupportedArchitecture(
            f"metadata key '{key}' names no pooling that rase knows",
            expected="1 (mean), 2 (cls) or 3 (last)",
            found="no such key" if value is None else others.get(number, f"{value!r:.40}"),
            hint="Use a file that was converted as an embedding model.",
        )  # fmt: skip
    return ways[number]


def _table() -> dict[str, Architecture]:
    """Name or alias -> Architecture, from every module of this package that exports NAMES."""
    table: dict[str, Architecture] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        own = getattr(module, "NAMES", ())
        table.update((name, Architecture(name, module, module.CHAT_TEMPLATE)) for name in own)
        if own:
            table.update((name, Architecture(own[0], module, chat)) for name, chat in module.ALIASES.items())
    return table
