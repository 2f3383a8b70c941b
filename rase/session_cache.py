"""``SessionCache``: loaded models by id and device; each loads once, and again when its manifest changes.

A model stays for its keep-alive time after the last use, for ever while it is pinned or a ``Model`` object
holds it, and shorter when another one needs its memory: then the least recently used idle model goes first.
"""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rase import env, metrics
from rase.device import DevicePreference, RuntimeDevice
from rase.duration import FOREVER
from rase.errors import Cancelled, EngineError, InsufficientMemory, ServerBusy
from rase.loaded import check_runs

if TYPE_CHECKING:
    from rase.embedding import EmbeddingSession
    from rase.loading import Kind, Progress
    from rase.registry.manifest import ModelManifest
    from rase.registry.store import ModelRegistry
    from rase.session import ModelSession
    from rase.session_base import Session

__all__ = ["LoadedModel", "SessionCache", "process_cache"]

_Key = tuple[str, str, str]  # store folder, model id, device and KV format
BUSY_SECONDS = 1.0  # how soon a model is looked at again that was in use when its time was over
GRACE_SECONDS = (
    1.0  # a session that was just handed out gets as long to be used, whatever its keep-alive time
)


@dataclass(frozen=True)
class LoadedModel:
    """What ``rase ps`` shows of one model. Times are seconds since the epoch, sizes bytes."""

    id: str
    device: str
    weights: int  # bytes of its files
    context_length: int
    loaded_at: float
    used_at: float
    expires_at: float | None  # None: it stays until it is unloaded or its memory is needed
    pinned: bool  # it stays even then
    active: int  # requests that wait or run


class _Entry:
    """One model in the cache, or on its way into it. ``done`` is set when loading ended, well or not."""

    def __init__(self, manifest: ModelManifest, keep_alive: float) -> None:
        self.manifest, self.keep_alive = manifest, keep_alive
        self.done = threading.Event()
        self.session: Session | None = None
        self.error: EngineError | None = None
        self.pinned = False
        self.loaded_at = time.time()

    @property
    def held(self) -> bool:
        """Whether it stays however long nobody uses it."""
        return self.pinned or self.session is None or len(self.session.holders) > 0

    @property
    def busy(self) -> bool:
        return self.held or (self.session is not None and self.session.active > 0)

    def expiry(self) -> float:
        """The monotonic time at which it may go, were it idle; infinity for never."""
        if self.held or self.session is None:
            return FOREVER
        return self.session.used_at + max(self.keep_alive, GRACE_SECONDS)


class SessionCache:
    """Loaded models of this process. Safe from any number of threads, and after a fork.

    ``keep_alive`` is how many seconds a model stays after its last use, unless ``keep`` says otherwise: with
    0 it goes within a second, with ``math.inf`` never. ``budget`` bounds the bytes of the weights that are
    loaded together; None is what the machine has. ``max_models`` bounds their number: ``ServerBusy`` when all
    of them are in use. ``prefix_store`` is a folder that keeps computed prompts
    across restarts, of at most ``prefix_store_size`` bytes (``ModelSession.keep_prefixes``); None is what
    RASE_PREFIX_STORE and RASE_PREFIX_STORE_SIZE say.

    A session lives as long as anyone uses it: what ``clear``, an eviction or a reload drops is freed when the
    last running generation has ended. A forked child starts with an empty cache and loads its own.
    """

    def __init__(
        self, *, keep_alive: float = FOREVER, budget: int | None = None,
        max_models: int | None = None, prefix_store: str | os.PathLike[str] | None = None,
        prefix_store_size: int | None = None,
    ) -> None:  # fmt: skip
        self.keep_alive, self.budget, self.max_models = keep_alive, budget, max_models
        self.prefix_store, self.prefix_store_size = prefix_store, prefix_store_size
        self._entries: dict[_Key, _Entry] = {}
        self._mutex = threading.Lock()
        self._clock = _Clock(self)
        self._inherited: list[_Entry] = []  # of the parent process: kept, since they cannot be closed here
        _caches.add(self)

    def get_or_load(
        self,
        registry: ModelRegistry,
        id: str,
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
        *,
        kv: str | None = None,
    ) -> ModelSession:
        """Return the loaded model ``id``, loading it first if it is absent or its manifest has changed.

        ``kv`` None is what RASE_KV says; the same model with another ``kv`` is loaded beside it.

        Callers that ask for a model that is being loaded wait for it; other models load meanwhile. A model
        that does not fit takes the place of idle ones. Raises what ``ModelSession.load`` and ``registry.get``
        raise, ``InvalidRequest`` for an embedding model among them; a failed load is not remembered.
        """
        return self._get(registry, id, device, progress, cancelled, "generator", kv)  # type: ignore[return-value]

    def get_or_load_embedding(
        self,
        registry: ModelRegistry,
        id: str,
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> EmbeddingSession:
        """As ``get_or_load``, for an embedding model."""
        return self._get(registry, id, device, progress, cancelled, "embedding")  # type: ignore[return-value]

    def _get(
        self, registry: ModelRegistry, id: str, device: DevicePreference | RuntimeDevice | str,
        progress: Progress | None, cancelled: Callable[[], bool] | None, kind: Kind, kv: str | None = None,
    ) -> Session:  # fmt: skip
        from rase.registry.manifest import ModelKind

        chosen = RuntimeDevice.select(device)
        kv = kv or env.get("RASE_KV")
        key = (os.fspath(registry.root), id, f"{chosen.name}/{chosen.backend_name}/{kv}")
        while True:
            manifest = registry.get(id)
            check_runs(manifest, ModelKind(kind))
            entry, mine = self._find_or_load(key, manifest, chosen, progress, cancelled, kv)
            while not mine and not entry.done.wait(0.02):
                if cancelled is not None and cancelled():
                    raise Cancelled(f"waiting for model '{id}' was cancelled")
            if entry.session is not None:
                entry.session.used_at = time.monotonic()
                self._clock.look_at(entry.expiry())
                return entry.session
            if entry.error is not None:  # a copy: each thread's traceback goes on an exception of its own
                raise copy.copy(entry.error)

    def keep(self, session: Session, *, seconds: float | None = None, pinned: bool | None = None) -> None:
        """Set the keep-alive time of one loaded model, or pin it; None leaves a setting as it is."""
        with self._mutex:
            found = [entry for entry in self._entries.values() if entry.session is session]
            for entry in found:
                entry.keep_alive = entry.keep_alive if seconds is None else seconds
                entry.pinned = entry.pinned if pinned is None else pinned
        for entry in found:
            self._clock.look_at(entry.expiry())

    def discard(self, session: Session) -> None:
        """Unload one model; a generation that runs on it finishes."""
        self._drop_where(lambda entry: entry.session is session)

    def clear(self) -> None:
        """Unload everything, pinned models too; generations that run finish, loads that run are not kept."""
        self._drop_where(lambda entry: True)

    def sessions(self) -> list[Session]:
        """The models that are loaded now."""
        with self._mutex:
            return [entry.session for entry in self._entries.values() if entry.session is not None]

    def loaded(self) -> list[LoadedModel]:
        """What is loaded now, the most recently used model first."""
        with self._mutex:
            entries = [entry for entry in self._entries.values() if entry.session is not None]
        return sorted(map(_describe, entries), key=lambda model: -model.used_at)

    def _find_or_load(
        self, key: _Key, manifest: ModelManifest, device: RuntimeDevice, progress: Progress | None,
        cancelled: Callable[[], bool] | None, kv: str | None,
    ) -> tuple[_Entry, bool]:  # fmt: skip
        """The entry of another caller, or our own, loaded here: whatever strikes, it ends done."""
        mine = _Entry(manifest, self.keep_alive)
        try:
            with self._mutex:
                entry = self._entries.get(key)
                if entry is not None and entry.manifest == manifest:
                    return entry, False
                self._entries[key] = mine
            del entry  # a model that was registered anew makes room for itself
            mine.session = self._load(manifest, device, progress, cancelled, kv)
            mine.loaded_at = time.time()
            return mine, True
        except EngineError as error:
            if not isinstance(error, Cancelled):  # whoever waits was not cancelled: it tries itself
                mine.error = error
            raise
        finally:
            if mine.session is None:
                self._drop_where(lambda entry: entry is mine)
            mine.done.set()

    def _load(
        self, manifest: ModelManifest, device: RuntimeDevice, progress: Progress | None,
        cancelled: Callable[[], bool] | None, kv: str | None,
    ) -> Session:  # fmt: skip
        """Load, in the place of idle models where need be."""
        from rase.embedding import EmbeddingSession
        from rase.session import ModelSession

        kind: type[Session] = EmbeddingSession if manifest.kind == "embedding" else ModelSession
        counted, start = metrics.of(manifest.id), time.monotonic()
        while True:
            try:
                self._check_limits(manifest)
                session = kind.load(manifest, device, progress, cancelled, kv)
                if self.prefix_store is not None and isinstance(session, ModelSession):
                    session.keep_prefixes(self.prefix_store, self.prefix_store_size)
                break
            except (InsufficientMemory, ServerBusy):
                if not self._evict_one():
                    counted.count("loads_failed")
                    raise
            except BaseException:
                counted.count("loads_failed")
                raise
        counted.count("loads")
        counted.observe("load_seconds", time.monotonic() - start)
        return session

    def _check_limits(self, manifest: ModelManifest) -> None:
        if self.max_models is not None and len(loaded := self.sessions()) >= self.max_models:
            raise ServerBusy(
                f"model '{manifest.id}' finds no place", found=f"{len(loaded)} loaded models in use",
                hint="Try again later, or allow more with RASE_MAX_LOADED_MODELS.",
            )  # fmt: skip
        if self.budget is None:
            return
        needed, taken = _weights(manifest), sum(_weights(session.manifest) for session in self.sessions())
        if needed + taken > self.budget:
            raise InsufficientMemory(
                f"model '{manifest.id}'", needed=needed, available=max(0, self.budget - taken),
                hint="Unload another model, or allow more with --memory-budget or RASE_MEMORY_BUDGET.",
            )  # fmt: skip

    def _evict_one(self) -> bool:
        """Unload the least recently used model that nobody uses; False when there is none."""
        with self._mutex:
            idle = [entry for entry in self._entries.values() if not entry.busy]
        if not idle:
            return False
        oldest = min(idle, key=lambda entry: entry.session.used_at if entry.session is not None else 0.0)
        del idle
        self._drop_where(lambda entry: entry is oldest)
        return True

    def _expire(self) -> float:
        """Unload what has been idle for long enough; the monotonic time at which to look again."""
        now = time.monotonic()
        with self._mutex:
            over = [entry for entry in self._entries.values() if entry.expiry() <= now and not entry.busy]
        self._drop_where(lambda entry: entry in over)
        with self._mutex:
            times = [entry.expiry() for entry in self._entries.values()]
        return min((max(when, now + BUSY_SECONDS) for when in times), default=FOREVER)

    def _drop_where(self, goes: Callable[[_Entry], bool]) -> None:
        with self._mutex:
            dropped = [entry for entry in self._entries.values() if goes(entry)]
            self._entries = {key: entry for key, entry in self._entries.items() if entry not in dropped}
        for entry in dropped:  # outside of the mutex: the last user frees gigabytes
            if entry.session is not None:
                metrics.of(entry.manifest.id).count("unloads")

    def _after_fork(self) -> None:
        """In the child: locks may be held, and loads under way, by threads that do not exist here."""
        self._inherited += self._entries.values()
        self._entries, self._mutex, self._clock = {}, threading.Lock(), _Clock(self)


class _Clock:
    """The thread that unloads idle models. There is one only while a model is loaded that can expire."""

    def __init__(self, cache: SessionCache) -> None:
        self._cache = weakref.ref(cache)
        self._changed = threading.Condition()
        self._next = FOREVER
        self._running = False

    def look_at(self, when: float) -> None:
        """Look no later than at the monotonic time ``when``."""
        with self._changed:
            if when < self._next:
                self._next = when
                self._changed.notify()
            if not self._running and self._next < FOREVER:
                self._running = True
                threading.Thread(target=self._run, name="rase-keep-alive", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (left := self._next - time.monotonic()) > 0:
                    if self._next == FOREVER:
                        self._running = False
                        return
                    self._changed.wait(min(left, 3600.0))
                self._next = FOREVER
            cache = self._cache()
            when = FOREVER if cache is None else cache._expire()
            del cache
            with self._changed:
                self._next = min(self._next, when)


def _weights(manifest: ModelManifest) -> int:
    """Bytes of a model's files, which are about what they take when loaded; 0 for those that are gone."""
    return sum(os.path.getsize(file.path) for file in manifest.weight_files if os.path.exists(file.path))


def _describe(entry: _Entry) -> LoadedModel:
    session = entry.session
    assert session is not None
    since = time.time() - time.monotonic()
    expiry = entry.expiry()
    return LoadedModel(
        session.id, session.device.name, _weights(session.manifest), session.context_length, entry.loaded_at,
        session.used_at + since, None if expiry == FOREVER else expiry + since, entry.pinned, session.active,
    )  # fmt: skip


_caches: weakref.WeakSet[SessionCache] = weakref.WeakSet()
_process = SessionCache()


def process_cache() -> SessionCache:
    """The cache that ``rase.load`` and the module functions share."""
    return _process


def _reset_in_child() -> None:
    for cache in list(_caches):
        cache._after_fork()


os.register_at_fork(after_in_child=_reset_in_child)
