"""Which replica gets a request: ``PrefixRouter``, on the interface that Ray Serve offers for routers.

Ray has a router of its own for prefixes, in a module that is not public and that keeps every prompt's text
in a process beside; ``router_class("ray")`` finds it by name, where it is.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from rase.cluster.places import Places
from rase.cluster.prefixes import Affinity
from rase.errors import BackendUnavailable

__all__ = ["PrefixRouter", "router_class"]

ASK_S = 1.0  # for a replica to say how many requests it has
_OF_RAY = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router"


def router_class(name: str) -> type | None:
    """The class for ``prefix`` or ``ray``; None for ``balanced``, which is Serve's own default.

    Raises ``BackendUnavailable`` where this Ray has no router for prefixes.
    """
    if name == "balanced":
        return None
    if name == "prefix":
        return PrefixRouter
    try:
        found: type = import_module(_OF_RAY).PrefixCacheAffinityRouter
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(
            "Ray's router for prefixes", expected=f"PrefixCacheAffinityRouter in {_OF_RAY}", found=str(error),
            hint="Use --router prefix, which needs no part of Ray that is not public.") from None  # fmt: skip
    return found


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Sends requests with the same beginning to the same replica, while its queue allows."""

    def initialize_state(self, together: int = 1 << 30, **options: Any) -> None:
        """Called by Serve before the first request; a replica gets ``together`` requests at one time."""
        self._affinity, self._places, self._together = Affinity(), Places(), together

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when replicas come or go."""
        super().update_replicas(replicas)
        self._affinity.keep([replica.replica_id.unique_id for replica in replicas])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The candidates in groups, the best first; Serve takes the one that is least busy of a group."""
        candidates = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        found = await asyncio.gather(*map(self._load, candidate_replicas))
        if pending_request is not None:  # what it took in an earlier round
            self._places.leave(pending_request.metadata.internal_request_id)
        own = self._places.counts()
        loads = {
            name: max(load, own[name])
            for name, load in zip(candidates, found, strict=True) if load is not None
        }  # fmt: skip
        keys = _keys(pending_request)
        groups = self._affinity.rank(keys, loads, self._together)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # all are asked: wait before the next round
        if groups and len(groups[0]) == 1:  # at once: the next of a crowd may be its neighbour
            self._affinity.learn(keys, groups[0][0])
            if pending_request is not None:
                self._places.take(
                    pending_request.metadata.internal_request_id,
                    groups[0][0],
                    pending_request.future.cancelled,
                )
        return [[candidates[name] for name in group] for group in groups]

    async def _load(self, replica: RunningReplica) -> int | None:
        """How many requests it has: as this router knows, which forgets in seconds, else as it says."""
        known: int | None = self.replica_queue_len_cache.get(replica.replica_id)
        if known is None:
            try:
                async with asyncio.timeout(ASK_S):
                    known = await replica.get_queue_len(deadline_s=ASK_S)
            except Exception:  # it is gone, or busy: whether it comes back is for Serve to see
                return None
            self.replica_queue_len_cache.update(replica.replica_id, known)
        return known

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Called by Serve when a replica has taken a request."""
        self._affinity.learn(_keys(pending_request), replica_id.unique_id)
        self._places.take(pending_request.metadata.internal_request_id, replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve, once for each request that was sent, however it ended."""
        self._places.leave(internal_request_id)


def _keys(pending: PendingRequest | None) -> tuple[bytes, ...]:
    """Those of an ``Ask``; other calls have none."""
    args = pending.args if pending is not None else ()
    return getattr(args[0], "prefix", ()) if args else ()
