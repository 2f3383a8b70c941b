"""``HandleReplicas``: the replicas of a model behind a handle of Ray Serve; its errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ray import exceptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from rase.cluster.wire import Ask, Message
from rase.errors import BackendError, ReplicaLost, ServerBusy

__all__ = ["HandleReplicas", "translated"]

_LOST = (
    exceptions.RayActorError, exceptions.NodeDiedError, exceptions.WorkerCrashedError,
    exceptions.ObjectLostError,
)  # fmt: skip


class HandleReplicas:
    """``rase.cluster.engines.Replicas`` of one deployment."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._stream = handle, handle.options(method_name="answer", stream=True)

    async def answer(self, ask: Ask) -> AsyncGenerator[Message, None]:
        """The answer of the replica that the router chooses; closing it cancels the work there."""
        response, ended = self._stream.remote(ask), False
        try:
            async for message in response:
                yield message
            ended = True
        except Exception as error:
            ended = True
            raise translated(error) from None
        finally:
            if not ended:
                response.cancel()

    async def tell(self, what: str, patience_s: float) -> list[tuple[str, Any]]:
        """What each replica says of itself; where one keeps all waiting, what any one says."""
        try:
            told = await self._handle.broadcast("tell", what).results_async(
                timeout_s=patience_s, return_exceptions=True
            )
        except TimeoutError:
            told = [] if what != "faults" else await self._ask_one(what, patience_s)
        except RayServeException:  # there is none
            told = []
        return [one for one in told if not isinstance(one, BaseException)]

    async def _ask_one(self, what: str, patience_s: float) -> list[Any]:
        try:
            async with asyncio.timeout(patience_s):
                return [await self._handle.tell.remote(what)]
        except Exception:  # no time, or no replica
            return []


def translated(error: Exception) -> Exception:
    """An error of Ray as one of ours, without what it says: that may hold a traceback."""
    if isinstance(error, _LOST):
        return ReplicaLost(
            "the replica that computed this request is gone", hint="Send the request again.")  # fmt: skip
    if isinstance(error, (BackPressureError, DeploymentUnavailableError)):
        return ServerBusy("no replica takes this request now", hint="Try again later.")
    return BackendError(f"{type(error).__name__} between the server and a replica")
