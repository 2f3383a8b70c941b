"""``Config``: what a cluster is told: models, replicas, and the settings of every process of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rase import env
from rase.errors import InvalidSetting

__all__ = ["Config", "models_of", "read_config"]

HEALTH_PERIOD_S, HEALTH_PATIENCE_S = 5.0, 30.0
SPARE = 16  # calls of a replica beside requests: what it tells of itself must not wait for them
LEAVE_S = 300.0  # for the requests of a replica that is not needed any more
_FOLDERS = ("RASE_STORE", "RASE_PREFIX_STORE")
_THREADS = ("RASE_NUM_THREADS", "CANDLE_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Config:
    """One cluster. It travels to every replica, and holds no secret."""

    models: tuple[str, ...]
    device: str = "auto"
    low: int = 1  # replicas of each model
    high: int = 1
    target: int = 8  # requests of a replica, on average, for which the number of replicas is right
    cpus: int = 1  # that Ray keeps for a replica, and that it computes with
    router: str = "prefix"
    together: int = 64  # requests that a replica runs at one time
    queue: int = 32  # requests that may wait besides
    drain_s: float = 10.0
    given: Mapping[str, str] = field(default_factory=dict)  # variables that count everywhere
    inherited: Mapping[str, str] = field(default_factory=dict)  # those that a machine's own come before

    @property
    def limit(self) -> int:
        """Requests of one model that are taken together."""
        return self.high * self.together + self.queue

    def enter(self) -> None:
        """Make the settings those of this process, which belongs to the cluster."""
        os.environ.update(self.given)
        for name, text in self.inherited.items():
            os.environ.setdefault(name, text)
        if not any(os.environ.get(name) for name in _THREADS):
            for name in ("RASE_NUM_THREADS", "RAYON_NUM_THREADS"):
                os.environ[name] = str(self.cpus)

    def engine_options(self) -> dict[str, Any]:
        """The options of a model's Serve deployment, but its router.

        For Serve a replica is never full. How many requests are taken is for the server to say, and how many
        a replica has together for the router and for the replica itself.
        """
        number: dict[str, Any] = {"num_replicas": self.low}
        if self.low != self.high:
            number = {"autoscaling_config": {
                "min_replicas": self.low, "max_replicas": self.high, "initial_replicas": self.low,
                "target_ongoing_requests": self.target,
            }}  # fmt: skip
        return {
            **number, "max_ongoing_requests": self.limit + SPARE, "max_queued_requests": -1,
            "ray_actor_options": {"num_cpus": self.cpus},
            "health_check_period_s": HEALTH_PERIOD_S, "health_check_timeout_s": HEALTH_PATIENCE_S,
            "graceful_shutdown_timeout_s": max(LEAVE_S, self.drain_s), "graceful_shutdown_wait_loop_s": 0.5,
        }  # fmt: skip


def read_config(models: Sequence[str] = (), device: str | None = None, *, shared: bool = False) -> Config:
    """The configuration that the settings say; ``models`` and ``device`` come before them.

    ``shared``: the machines are those of a Ray that runs already, so that a replica is one machine's work.
    Raises ``InvalidSetting``.
    """
    models = tuple(models) or env.get("RASE_MODELS")
    replicas = env.get("RASE_REPLICAS")
    low, high = env.get("RASE_MIN_REPLICAS"), env.get("RASE_MAX_REPLICAS")
    low = min(replicas, high or replicas) if low is None else low
    high = max(replicas, low) if high is None else high
    if low > high:
        raise InvalidSetting(
            "min_replicas", expected=f"at most max_replicas, {high}", found=low,
            hint="Set both, or replicas alone for a fixed number.")  # fmt: skip
    cpus = env.get("RASE_REPLICA_CPUS")
    if cpus is None:
        cpus = max(1, _cores() // (1 if shared else high * max(1, len(models))))
    given, inherited = env.texts()
    return Config(
        models=tuple(models), device=device or env.get("RASE_DEVICE"),
        low=low, high=high, target=env.get("RASE_TARGET_ONGOING_REQUESTS"), cpus=cpus,
        router=env.get("RASE_ROUTER"), together=env.get("RASE_MAX_BATCH_SEQS"),
        queue=env.get("RASE_MAX_QUEUE"), drain_s=env.get("RASE_DRAIN_TIMEOUT"),
        given=_whole_paths(given), inherited=_whole_paths(inherited),
    )  # fmt: skip


def models_of(registry: Any, models: Sequence[str]) -> list[Any]:
    """The manifests of ``models``, or that of the one model which the store has.

    Raises ``InvalidSetting`` when none is named and the store has none or several, and ``ModelNotFound``.
    """
    if models:
        return [registry.get(model) for model in dict.fromkeys(models)]
    manifests: list[Any] = registry.list()
    if len(manifests) != 1:
        raise InvalidSetting(
            "models", expected="the ids of the models to serve",
            found=f"none, and {len(manifests)} models in the store", hint="rase model list shows them.",
        )  # fmt: skip
    return manifests


def _cores() -> int:
    """Physical cores that this process may use, as far as the system says."""
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or 1, usable)


def _whole_paths(texts: Mapping[str, str]) -> dict[str, str]:
    """Folders by whole paths: other processes stand elsewhere."""
    return {
        name: str(Path(text).expanduser().absolute()) if name in _FOLDERS else text
        for name, text in texts.items()
    }
