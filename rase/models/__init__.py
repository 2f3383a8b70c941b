"""Finds architectures by scanning this package, resolves their aliases and builds their graphs.

An architecture is one file here. It exports ``NAMES`` (values of GGUF's ``general.architecture``),
``CHAT_TEMPLATE`` (the template of a file that has none, or None), ``ALIASES`` (further names that a user may
say, each with its template) and ``build(cfg, g)``, which writes the forward pass onto the builder ``g``.
``CHECKPOINTS``, where it has any, say how folders of safetensors files hold the same models.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rase.checkpoint.mapping import Checkpoint
from rase.errors import CorruptModelFile, ManifestError, UnsupportedArchitecture
from rase.graph.builder import GraphBuilder, Shaped
from rase.graph.ops import Graph
from rase.models.config import ModelConfig

__all__ = ["Architecture", "build", "checkpoints", "names", "resolve"]

# Architectures that people ask for and that are refused for a reason worth saying.
_REFUSED = {
    "phi": (
        "its files fuse matrices and scale positions in ways that differ between versions, "
        "and reading one as another gives fluent, wrong text",
        "Use a Phi-3 GGUF instead.",
    ),
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
) -> Graph:
    """The graph of a GGUF file, from its metadata and its tensors' shapes alone.

    ``architecture`` and ``context_length`` are the manifest's; one that contradicts the file raises
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
    cfg = ModelConfig.read(metadata, tensors, own, context_length)
    g = GraphBuilder(tensors, architecture=own, sizes=cfg.sizes, context_length=cfg.context_length)
    found.module.build(cfg, g)
    cfg.keys.refuse_unread()
    return g.finish()


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
