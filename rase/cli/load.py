"""Loads the model that a command names: an id of the store, a GGUF file, or a safetensors folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rase.cli.progress import Progress

if TYPE_CHECKING:
    from rase.registry import ModelRegistry
    from rase.session import ModelSession

__all__ = ["load_session"]


def load_session(store: ModelRegistry, model: str, device: str) -> ModelSession:
    """Load ``model`` with progress on stderr; raises what ``ModelSession.load`` and ``load_file`` raise."""
    with Progress() as progress:
        step: Any = progress.stage("load")
        if model.endswith(".gguf") or os.sep in model:  # one that is not there is an error of the file
            from rase.session import ModelSession

            return ModelSession.load_file(model, device, progress=step)
        from rase.session_cache import process_cache

        return process_cache().get_or_load(store, model, device, step)
