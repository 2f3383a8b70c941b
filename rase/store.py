"""The model store as rase offers it: a registry that refuses a file which cannot run when it is registered.

``rase.registry`` knows files, hashes and manifests; which architectures there are is known up here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rase.registry import store

if TYPE_CHECKING:
    from rase.gguf.reader import GgufFile
    from rase.safetensors.folder import SafetensorsFolder

__all__ = ["ModelRegistry", "open_store"]


class ModelRegistry(store.ModelRegistry):
    """A model store. Every change holds its lock and is durable when it returns; reading takes no lock.

    ``import_local`` builds the model's graph from the file's metadata, so that an unknown architecture, a
    missing tensor or a wrong shape is an error then, and not at the first question.
    """

    def check(
        self, file: GgufFile | SafetensorsFolder, architecture: str | None, context_length: int | None
    ) -> Mapping[str, Any]:
        from rase import models
        from rase.models.files import open_folder
        from rase.safetensors.folder import SafetensorsFolder

        model = open_folder(file) if isinstance(file, SafetensorsFolder) else file
        models.build(model.metadata, model.tensors, architecture, context_length)
        return model.metadata


def open_store(root: str | os.PathLike[str] | None = None) -> ModelRegistry:
    """Open the model store ``root`` (default: ``RASE_STORE``, else the user's data folder)."""
    if root is None:
        from rase.registry import default_store

        root = default_store()
    return ModelRegistry.open(root)
