"""The server and its replicas as a Ray Serve application.

    serve run rase.cluster.ray:app models=smollm2 replicas=2

takes the settings of ``rase.settings`` as arguments, by their keys. The ingress is the application of
``rase.server.app`` with all it checks and says; each model is a deployment, each replica of it a process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import rase.cluster.installed  # noqa: F401  # before anything of Ray

# isort: split
from ray import serve
from ray.serve.config import RequestRouterConfig

from rase import env
from rase.cluster.config import Config, models_of, read_config
from rase.cluster.engines import ReplicaEngines
from rase.cluster.front import Front
from rase.cluster.handles import HandleReplicas
from rase.cluster.replica import Replica
from rase.cluster.routing import router_class
from rase.errors import InvalidSetting
from rase.server.access import set_up_logging
from rase.server.app import application
from rase.server.keys import Keys, keys_of_settings
from rase.settings import key_of

__all__ = ["app", "build"]

_QUIET = {"enable_access_log": False}  # the server's own log has a line for each request
_MANY = 1 << 16  # requests of the ingress: whom it refuses is for the application to say


def app(args: Mapping[str, str]) -> Any:
    """The target for ``serve run``: settings by their keys, such as ``models=smollm2 replicas=2``.

    Where Serve listens is for ``serve run`` and ``serve start`` to say; see ``Front`` for who is answered.
    Raises ``InvalidSetting``, and what ``build`` raises.
    """
    variables = {key: name for name in env.SETTINGS if (key := key_of(name)) is not None}
    with env.command():
        for key, text in args.items():
            if key not in variables:
                raise InvalidSetting(
                    f"the argument {key}", expected="a key as in rase.toml", found="no such key",
                    hint="rase config show --all lists them.")  # fmt: skip
            env.choose(variables[key], str(text))
        env.check()
        return build(read_config(shared=True), Keys(keys_of_settings()))


def build(config: Config, keys: Keys) -> Any:
    """The Serve application for ``config``. Raises what ``models_of`` and ``router_class`` raise."""
    from rase.store import open_store

    manifests = models_of(open_store(), config.models)
    options, router = config.engine_options(), router_class(config.router)
    if router is not None:
        known = {"together": config.together} if config.router == "prefix" else {}
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=router, request_router_kwargs=known
        )
    replicas = [
        serve.deployment(_Engine, name=manifest.id, logging_config=_QUIET, **options).bind(config, manifest)
        for manifest in manifests
    ]
    ingress = serve.deployment(
        serve.ingress()(_Ingress), name="ingress", logging_config=_QUIET, max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=config.drain_s + 3,
        graceful_shutdown_wait_loop_s=0.5)  # fmt: skip
    return ingress.bind(config, keys, manifests, *replicas)


class _Engine(Replica):
    """A replica that knows its name."""

    def __init__(self, config: Config, manifest: Any) -> None:
        super().__init__(config, manifest)
        self.name = serve.get_replica_context().replica_id.unique_id


class _Ingress:
    """The HTTP application in a replica of Serve."""

    def __init__(self, config: Config, keys: Keys, manifests: list[Any], *handles: Any) -> None:
        config.enter()
        set_up_logging(sys.stderr, env.get("RASE_LOG_FORMAT"))
        self._flush = None
        if env.get("RASE_OTEL"):
            from rase.server.tracing import set_up_export

            self._flush = set_up_export()
        replicas = {
            manifest.id: HandleReplicas(handle) for manifest, handle in zip(manifests, handles, strict=True)
        }
        self._engines = ReplicaEngines(manifests, replicas, limit=config.limit)
        self._front = Front(
            application(self._engines, drain_s=config.drain_s, keys=keys),
            open=bool(keys) or env.get("RASE_INSECURE"))  # fmt: skip

    def __serve_build_asgi_app__(self) -> Any:
        return self._front

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and return when the last one has ended: within ``seconds``, or cancelled."""
        await self._engines.drain(seconds)
        if self._flush is not None:
            await asyncio.to_thread(self._flush)
