"""``SessionCache``: loaded models by id and device; each loads once, and again when its manifest changes."""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from rase.device import DevicePreference, RuntimeDevice
from rase.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from rase.loading import Progress
    from rase.registry.manifest import ModelManifest
    from rase.registry.store import ModelRegistry
    from rase.session import ModelSession

__all__ = ["SessionCache", "process_cache"]

_Key = tuple[str, str, str]  # store folder, model id, device


class _Entry:
    """One model in the cache, or on its way into it. ``done`` is set when loading ended, well or not."""

    def __init__(self, manifest: ModelManifest) -> None:
        self.manifest = manifest
        self.done = threading.Event()
        self.session: ModelSession | None = None
        self.error: EngineError | None = None


class SessionCache:
    """Loaded models of this process. Safe from any number of threads, and after a fork.

    A session lives as long as anyone uses it: what ``clear`` or a reload drops is freed when the last running
    generation has ended. A forked child starts with an empty cache and loads its own.
    """

    def __init__(self) -> None:
        self._entries: dict[_Key, _Entry] = {}
        self._mutex = threading.Lock()
        self._inherited: list[_Entry] = []  # of the parent process: kept, since they cannot be closed here
        _caches.add(self)

    def get_or_load(
        self,
        registry: ModelRegistry,
        id: str,
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> ModelSession:
        """Return the loaded model ``id``, loading it first if it is absent or its manifest has changed.

        Callers that ask for a model that is being loaded wait for it; other models load meanwhile. Raises
        what ``ModelSession.load`` and ``registry.get`` raise; a failed load is not remembered.
        """
        chosen = RuntimeDevice.select(device)
        key = (os.fspath(registry.root), id, f"{chosen.name}/{chosen.backend_name}")
        while True:
            manifest = registry.get(id)
            entry, mine = self._find_or_load(key, manifest, chosen, progress, cancelled)
            while not mine and not entry.done.wait(0.02):
                if cancelled is not None and cancelled():
                    raise Cancelled(f"waiting for model '{id}' was cancelled")
            if entry.session is not None:
                return entry.session
            if entry.error is not None:  # a copy: each thread's traceback goes on an exception of its own
                raise copy.copy(entry.error)

    def _find_or_load(
        self, key: _Key, manifest: ModelManifest, device: RuntimeDevice, progress: Progress | None,
        cancelled: Callable[[], bool] | None,
    ) -> tuple[_Entry, bool]:  # fmt: skip
        """The entry of another caller, or our own, loaded here: whatever strikes, it ends done."""
        from rase.session import ModelSession

        mine = _Entry(manifest)
        try:
            with self._mutex:
                entry = self._entries.get(key)
                if entry is not None and entry.manifest == manifest:
                    return entry, False
                self._entries[key] = mine
            mine.session = ModelSession.load(manifest, device, progress, cancelled)
            return mine, True
        except EngineError as error:
            if not isinstance(error, Cancelled):  # whoever waits was not cancelled: it tries itself
                mine.error = error
            raise
        finally:
            if mine.session is None:
                self._drop(key, mine)
            mine.done.set()

    def _drop(self, key: _Key, entry: _Entry) -> None:
        with self._mutex:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def discard(self, session: ModelSession) -> None:
        """Unload one model; a generation that runs on it finishes."""
        with self._mutex:
            kept = {key: entry for key, entry in self._entries.items() if entry.session is not session}
            self._entries = kept

    def clear(self) -> None:
        """Unload everything; generations that run finish, loads that run are not kept."""
        with self._mutex:
            self._entries = {}

    def sessions(self) -> list[ModelSession]:
        """The models that are loaded now."""
        with self._mutex:
            return [entry.session for entry in self._entries.values() if entry.session is not None]

    def _after_fork(self) -> None:
        """In the child: locks may be held, and loads under way, by threads that do not exist here."""
        self._inherited += self._entries.values()
        self._entries, self._mutex = {}, threading.Lock()


_caches: weakref.WeakSet[SessionCache] = weakref.WeakSet()
_process = SessionCache()


def process_cache() -> SessionCache:
    """The cache that ``rase.load`` and the module functions share."""
    return _process


def _reset_in_child() -> None:
    for cache in list(_caches):
        cache._after_fork()


os.register_at_fork(after_in_child=_reset_in_child)
