"""Run the server: bind, load what is to be there, serve until a signal, end streams properly, leave.

It listens while models are being loaded: ``/health`` answers, ``/ready`` says no, and requests wait.

The first SIGINT or SIGTERM stops accepting, lets running requests go on for ``drain_s`` seconds, ends what is
left with an error event, and returns 0. The second ends the process at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rase import env
from rase.device import RuntimeDevice
from rase.errors import InvalidSetting
from rase.loading import usable_backend
from rase.selfcheck import self_check
from rase.server.access import set_up_logging
from rase.server.app import create_app
from rase.server.guard import is_loopback
from rase.server.keys import keys_of_settings
from rase.server.listen import Server, bind
from rase.session_cache import SessionCache

__all__ = ["announce", "refuse_strangers", "serve"]


def serve(
    store: Any = None,
    *,
    cache: Any = None,
    models: Collection[str] | None = None,
    draft: str | None = None,
    host: str | None = None,
    port: int | None = None,
    device: Any = "auto",
    queue_limit: int | None = None,
    drain_s: float | None = None,
    allowed_hosts: Collection[str] | None = None,
    allowed_origins: Collection[str] | None = None,
    api_keys: Collection[str] | None = None,
    insecure: bool | None = None,
    log_format: str | None = None,
    on_ready: Callable[[str], object] | None = None,
) -> int:
    """Serve the models of ``store`` (a folder, a ``ModelRegistry``, None: the default store) until a signal.

    ``cache`` decides how long models stay and what they may take. What is None is what ``rase.settings``
    says. ``models`` are loaded at once, and pinned; ``draft`` guesses for them
    (``ModelSession.use_draft``). Prints the address and a line to try on stderr, and calls ``on_ready`` with
    the address. Returns the exit status, 0. Raises ``InvalidSetting`` when the address cannot be used or the
    device cannot do what is set, ``BackendUnavailable`` when it is not there,
    ``StoreError`` for the store, what loading raises, and ``InvalidRequest`` for a draft that cannot guess.
    """
    if cache is None:
        cache = SessionCache(
            keep_alive=env.get("RASE_KEEP_ALIVE"), budget=env.get("RASE_MEMORY_BUDGET"),
            max_models=env.get("RASE_MAX_LOADED_MODELS"),
        )  # fmt: skip
    usable_backend(RuntimeDevice.select(device))  # now, and not with the first request
    host = env.get("RASE_HOST") if host is None else host
    models = env.get("RASE_MODELS") if models is None else models
    draft = env.get("RASE_DRAFT") if draft is None else draft
    drain_s = env.get("RASE_DRAIN_TIMEOUT") if drain_s is None else drain_s
    api_keys = keys_of_settings() if api_keys is None else api_keys
    flush: Callable[[], object] | None = None
    if env.get("RASE_OTEL"):
        from rase.server.tracing import set_up_export

        flush = set_up_export()
    sock = bind(host, env.get("RASE_PORT") if port is None else port)
    try:
        if not (api_keys or is_loopback(sock.getsockname()[0])):
            refuse_strangers(host, env.get("RASE_INSECURE") if insecure is None else insecure)
        app = create_app(
            store, cache, device=device, queue_limit=queue_limit, drain_s=drain_s,
            allowed_hosts=allowed_hosts, allowed_origins=allowed_origins, api_keys=api_keys)  # fmt: skip
        set_up_logging(sys.stderr, env.get("RASE_LOG_FORMAT") if log_format is None else log_format)
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{sock.getsockname()[1]}"
        registry = app.state.runner.registry
        for model in (*models, *([draft] if draft is not None else [])):
            registry.get(model)  # before anything is loaded

        def prepare(cancelled: Callable[[], bool]) -> None:
            with app.state.readiness.loading(models):
                for model in models:
                    _load(cache, registry, model, draft, device, cancelled)
                gc.freeze()  # what stands now stays: a collection that looks at all of it stops everybody
            announce(url, [manifest.id for manifest in registry.list()], bool(api_keys))
            if on_ready is not None:
                on_ready(url)

        sys.setswitchinterval(0.0005)  # the event loop waits for a driver's Python no longer than that
        server = Server(app, drain_s=drain_s, prepare=prepare)
        server.run(sockets=[sock])
    finally:
        sock.close()
        if flush is not None:
            flush()
    if server.failure is not None:
        raise server.failure
    return 0


def _load(
    cache: Any, registry: Any, model: str, draft: str | None, device: Any, cancelled: Callable[[], bool]
) -> None:
    """Load one model for as long as the server runs, and see it work."""
    print(f"loading {model}", file=sys.stderr, flush=True)
    session = cache.get_or_load(registry, model, device, cancelled=cancelled)
    cache.keep(session, pinned=True)
    if draft is not None:
        session.use_draft(cache.get_or_load(registry, draft, device, cancelled=cancelled))
    self_check(session)


def refuse_strangers(host: str, insecure: bool) -> None:
    """An address that other machines reach needs keys, or a word that it shall not: ``InvalidSetting``."""
    if not insecure:
        raise InvalidSetting(
            f"other machines can reach {host}", expected="API keys", found="none",
            hint="Set RASE_API_KEY or --api-key-file; --insecure lets everybody use the models.",
        )  # fmt: skip
    note = "Note: other machines can reach this address, and anyone who does can use the models."
    print(note, file=sys.stderr, flush=True)


def announce(url: str, ids: Sequence[str], keys: bool) -> None:
    """Say where the models ``ids`` are served, and a line to try."""
    example = ids[0] if ids else "MODEL"
    lines = [
        f"rase serves {len(ids)} model{'' if len(ids) == 1 else 's'} at {url}/v1  (Ctrl-C ends it)",
        f"try: curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' "
        + ('-H "Authorization: Bearer $RASE_API_KEY" ' if keys else "")
        + f'-d \'{{"model": "{example}", "messages": [{{"role": "user", "content": "Hello"}}]}}\'',
    ]
    if not ids:
        lines.append("No model is registered yet: rase model import FILE --id NAME, or rase model pull.")
    print("\n".join(lines), file=sys.stderr, flush=True)
