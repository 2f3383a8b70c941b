"""``run``: a cluster from the command line: start Ray where none runs, serve until a signal, drain, leave."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rase import env
from rase.cluster.config import Config, models_of
from rase.errors import BackendError, BackendUnavailable
from rase.server.guard import is_loopback
from rase.server.keys import Keys, keys_of_settings
from rase.server.listen import bind
from rase.server.serve import announce, refuse_strangers

__all__ = ["run"]

APP = "rase"  # the name of the Serve application
STORE_MEMORY = 256 << 20  # bytes of Ray's object store: only long prompts pass through it
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_QUIET = {"log_level": "WARNING", "enable_access_log": False}


def run(config: Config, registry: Any, on_ready: Callable[[str], object] | None = None) -> int:
    """Serve ``config`` until a signal; returns the exit status, 0. ``on_ready`` is called with the address.

    The first SIGINT or SIGTERM refuses new requests, lets running ones go on for ``config.drain_s`` seconds,
    and ends what is left with an error event; the second ends the process at once. Without RASE_RAY_ADDRESS
    a Ray of its own begins and ends with the call: on loopback, without its dashboard.

    Raises ``InvalidSetting`` for an address that cannot be used, ``BackendUnavailable`` without Ray, or
    for one that does not answer, errors of the store, and ``BackendError`` when the replicas do not start.
    """
    import rase.cluster.installed  # noqa: F401  # before anything else is done

    ids = [manifest.id for manifest in models_of(registry, config.models)]
    keys, host = Keys(keys_of_settings()), env.get("RASE_HOST")
    with contextlib.closing(bind(host, env.get("RASE_PORT"))) as sock:  # Serve says less when it cannot
        address, port = sock.getsockname()[:2]
    if not (keys or is_loopback(address)):
        refuse_strangers(host, env.get("RASE_INSECURE"))
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    shared = env.get("RASE_RAY_ADDRESS")
    if not shared:
        _alone()
    _connect(shared, config.high * config.cpus * len(ids))
    try:
        with _told_to_end():
            _start(config, keys, host, port, everywhere=bool(shared))
            announce(url, ids, bool(keys))
            if on_ready is not None:
                on_ready(url)
            threading.Event().wait()
    except _Told:
        pass
    finally:
        _leave(config.drain_s, bool(shared))
    return 0


def _alone() -> None:
    """Let a Ray that begins here listen on loopback, for whoever has its token. It is imported later.

    Serve opens one port of each replica on every address; that one asks for the token, too.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # its switch for that, on Linux, too
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _connect(address: str | None, cpus: int) -> None:
    """Join the Ray at ``address``, or start one that has what the replicas need."""
    import ray

    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local", "num_cpus": cpus, "object_store_memory": STORE_MEMORY,
            "include_dashboard": False,
        }  # fmt: skip
    try:
        ray.init(**options, namespace="rase", logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendUnavailable(
            "Ray", expected=f"a cluster at {address}" if address else "a Ray that starts here",
            found=f"{type(error).__name__}: {str(error)[:300]}",
            hint="See whether it runs: ray status --address HOST:PORT." if address else None,
        ) from error  # fmt: skip


def _start(config: Config, keys: Keys, host: str, port: int, *, everywhere: bool) -> None:
    """Let Serve run the application; returns when every replica has loaded its model."""
    from ray import serve

    from rase.cluster.ray import build

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    application = build(config, keys)
    place: Any = {
        "proxy_location": "EveryNode" if everywhere else "HeadOnly",
        "http_options": {"host": host, "port": port}, "logging_config": _QUIET,
    }  # fmt: skip
    try:
        try:
            serve.start(**place)
        except TimeoutError:  # a busy machine needs longer than Serve waits; it is on its way
            serve.start(**place)
        serve.run(application, name=APP, route_prefix="/")
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BackendError(
            "the replicas do not start", found=lines[-1][:300] if lines else type(error).__name__,
            hint="--debug shows all of it.") from error  # fmt: skip


class _Told(BaseException):
    """A signal says that it is time to end."""


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """The first signal raises ``_Told``, wherever the block is; the second one ends the process."""

    def tell(number: int, frame: Any) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise _Told

    before = {number: signal.signal(number, tell) for number in SIGNALS}
    try:
        yield
    except _Told:
        raise  # a second signal ends the process, also while it drains
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise


def _leave(drain_s: float, shared: bool) -> None:
    """Let requests end, take the application out of Serve, and leave Ray."""
    import ray
    from ray import serve

    with contextlib.suppress(Exception):  # nothing was started, or Ray is gone
        serve.get_app_handle(APP).drain.remote(drain_s).result(timeout_s=drain_s + 5)
        if shared:
            serve.delete(APP)
    ray.shutdown()  # and with it all processes of a Ray of its own
