"""Finds backends: the modules of this package, then entry points of the group ``rase.backends``.

A backend module names its class as ``BACKEND``; an entry point refers to such a class. Nothing is imported
before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from typing import TYPE_CHECKING

from rase.errors import BackendUnavailable

if TYPE_CHECKING:
    from rase.backends.base import Backend

__all__ = ["get_backend", "names"]

_SUPPORT = frozenset({"base", "check", "limits"})  # modules of this package that are not backends


def names() -> tuple[str, ...]:
    """The names that ``get_backend`` knows, those of this package first."""
    return (*_modules(), *(name for name in sorted(_entry_points()) if name not in _modules()))


def get_backend(name: str) -> Backend:
    """The backend ``name``. Raises ``BackendUnavailable`` when it is unknown or cannot be imported here."""
    if name in _modules():
        try:
            backend: type[Backend] = importlib.import_module(f"{__name__}.{name}").BACKEND
            return backend()
        except ImportError as error:
            raise BackendUnavailable(
                f"backend '{name}' cannot be loaded", found=str(error),
                hint="A compiled part is missing: run 'pip install -e .' in the checkout, or reinstall.",
            ) from error  # fmt: skip
    entry = _entry_points().get(name)
    if entry is None:
        known = ", ".join(names())
        raise BackendUnavailable(f"unknown backend '{name}'", expected=f"one of {known}", found=repr(name))
    try:
        backend = entry.load()
    except Exception as error:  # code of another package: whatever it raises, this name is the cause
        raise BackendUnavailable(
            f"backend '{name}' ({entry.value}) cannot be loaded", found=f"{type(error).__name__}: {error}",
            hint="Update or remove the package that provides it.",
        ) from error  # fmt: skip
    return backend()


def _modules() -> tuple[str, ...]:
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if name not in _SUPPORT and not name.startswith("_")))


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group="rase.backends")}
