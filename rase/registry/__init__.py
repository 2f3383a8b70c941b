"""The model registry: which files are models, what their hashes are, and where they came from.

A store is one folder::

    <store>/manifests/<id>.toml     one manifest per model, written atomically
    <store>/weights/<id>/<hash>/    weights that the store owns (those that a package brought)
    <store>/incoming/               downloads in progress, one folder and one lock file each
    <store>/.lock                   held while anything in the store changes

Names are loaded on first use: importing this package reads no TOML, hub or lock library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rase.registry.hub import HuggingFaceHub
    from rase.registry.manifest import ManifestFile, ModelFormat, ModelKind, ModelManifest
    from rase.registry.sources import default_store, pull
    from rase.registry.store import ImportedModel, ModelRegistry, RemovedModel

__all__ = [
    "HuggingFaceHub", "ImportedModel", "ManifestFile", "ModelFormat", "ModelKind", "ModelManifest",
    "ModelRegistry", "RemovedModel", "default_store", "pull",
]  # fmt: skip

_HOMES = {
    "HuggingFaceHub": "hub", "ImportedModel": "store", "ManifestFile": "manifest", "ModelFormat": "manifest",
    "ModelKind": "manifest", "ModelManifest": "manifest", "ModelRegistry": "store", "RemovedModel": "store",
    "default_store": "sources", "pull": "sources",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
