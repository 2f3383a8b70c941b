"""What killed processes left in a store: temporary manifests, weights without a model, dead downloads."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rase.errors import InvalidRequest, ManifestError, ModelNotFound, StoreError
from rase.registry.files import TEMP_SUFFIX, remove_file, remove_tree
from rase.registry.locks import clear_dead_workspaces, dead_workspaces_possible, file_lock
from rase.registry.manifest import check_id

if TYPE_CHECKING:
    from rase.registry.store import ModelRegistry

__all__ = ["clean", "orphans"]

_log = logging.getLogger("rase.registry")


def clean(registry: ModelRegistry) -> None:
    """Remove the leftovers. Never fails: a store that is busy or read-only is cleaned another time."""
    root = registry.root
    try:
        if not dead_workspaces_possible(root) and not any(_leftovers(registry)):
            return  # the usual case takes no lock
        with file_lock(root / ".lock", 0):
            for path in list(
                _leftovers(registry)
            ):  # again: without the lock, a change may have been under way
                if path.is_dir():
                    remove_tree(path)
                else:
                    remove_file(path)
            if dead_workspaces_possible(root):
                clear_dead_workspaces(root)
    except (StoreError, OSError) as error:
        _log.debug("the store was not cleaned: %s", error)


def orphans(registry: ModelRegistry, id: str) -> list[Path]:
    """Folders under ``weights/<id>`` that no manifest needs; none when the manifest cannot be read."""
    home = registry.root / "weights" / id
    try:
        needed = Path(registry.get(id).weights).parent
        if needed.parent != home:
            return [home] if home.is_dir() else []
        return [folder for folder in sorted(home.iterdir()) if folder != needed]
    except ModelNotFound:
        return [home] if home.is_dir() else []
    except (ManifestError, StoreError, OSError):
        return []


def _leftovers(registry: ModelRegistry) -> Iterator[Path]:
    manifests, weights = registry.root / "manifests", registry.root / "weights"
    for name in os.listdir(manifests):
        if name.startswith(".") and name.endswith(TEMP_SUFFIX):
            yield manifests / name
    if weights.is_dir():
        for id in os.listdir(weights):
            with contextlib.suppress(InvalidRequest):  # not a folder of ours
                yield from orphans(registry, check_id(id))
