"""``run_batch``: a file of requests through the lanes of a server without one, many in flight, resumable.

Requests are read, run and answered by what serves ``/v1``: an answer has the bits that the server would have
sent. Those of one model run together, and one model after the other, so that each is loaded once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rase import env
from rase.errors import InvalidRequest
from rase.server.access import log_failure
from rase.server.batch_files import Answers, Asked, answer_line, read_requests
from rase.server.errors import error_body, status_of
from rase.server.openai import Call, model_of, read_chat, read_completion
from rase.server.replies import ChatReply, CompletionReply, Reply
from rase.server.runner import Runner

__all__ = ["Progress", "run_batch"]

AHEAD = 8  # requests that wait, prepared, for a place among those that run

_FORMS: dict[str, tuple[Callable[[bytes], Call], type[Reply]]] = {
    "/v1/chat/completions": (read_chat, ChatReply),
    "/v1/completions": (read_completion, CompletionReply),
}


@dataclass
class Progress:
    """How far a batch is. ``failed`` of ``done`` were answered with an error; ``tokens`` of this run."""

    total: int
    done: int = 0
    failed: int = 0
    tokens: int = 0


def run_batch(
    registry: Any, cache: Any, source: Path, target: Path, *, device: Any = "auto",
    progress: Callable[[Progress], object] = lambda progress: None,
) -> Progress:  # fmt: skip
    """Answer the requests of ``source`` and append the answers to ``target``; those that are there are done.

    What is wrong with one request is its answer. Raises, with all answers so far in ``target``:
    ``InvalidRequest`` for files that are no batch or do not belong together, ``StoreError``, and what loading
    a model raises.
    """
    asked = {one.custom_id: one for one in read_requests(source)}
    with Answers(target) as answers:
        if strange := answers.finished - asked.keys():
            raise InvalidRequest(
                f"{target.name} holds answers to other requests", expected=f"answers to {source.name}",
                found=repr(min(strange)[:80]), hint="Name another file for the answers.",
            )  # fmt: skip
        state = Progress(len(asked), len(answers.finished), answers.failed)
        for name in answers.finished:
            del asked[name]
        progress(state)
        if asked:
            asyncio.run(_Batch(registry, cache, device, answers, state, progress).run([*asked.values()]))
    return state


class _Batch:
    def __init__(
        self, registry: Any, cache: Any, device: Any, answers: Answers, state: Progress,
        progress: Callable[[Progress], object],
    ) -> None:  # fmt: skip
        self._registry, self._cache, self._device = registry, cache, device
        self._answers, self._state, self._progress = answers, state, progress
        self._runner = Runner(registry, cache, device=device, queue_limit=AHEAD)
        self._over = False
        self._in_flight = env.get("RASE_MAX_BATCH_SEQS") + AHEAD

    async def run(self, asked: list[Asked]) -> None:
        models: dict[str, list[Asked]] = {}
        for one in asked:
            models.setdefault(model_of(bytes(one.body)) or self._only_model(), []).append(one)
        try:
            for model, requests in models.items():
                # Once, and here: a model that cannot be loaded ends the batch, and not each of its requests.
                session = await asyncio.to_thread(
                    self._cache.get_or_load, self._registry, model, self._device, cancelled=lambda: self._over
                )
                pending = iter(requests)
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._in_flight, len(requests))):
                        group.create_task(self._work(model, pending))
                del session
        except BaseExceptionGroup as errors:  # of the task that failed first
            raise errors.exceptions[0] from None
        finally:
            self._over = True
            self._runner.close()
            await asyncio.to_thread(self._runner.join)

    async def _work(self, model: str, pending: Any) -> None:
        for one in pending:
            status, body, tokens = await self._answer(model, one)
            self._answers.add(answer_line(one.custom_id, secrets.token_hex(12), status, body))
            self._state.done += 1
            self._state.failed += status != 200
            self._state.tokens += tokens
            self._progress(self._state)

    async def _answer(self, model: str, one: Asked) -> tuple[int, bytes, int]:
        """Status and body as the server would have answered without a stream, and the answer's tokens."""
        read, form = _FORMS[one.url]
        try:
            call = read(bytes(one.body))
            job = await self._runner.admit(model)
            self._runner.submit(job, call.requests, stream=False)
            started = await job.ready
            completions = await job.done
        except Exception as error:
            log_failure(error)
            return status_of(error), error_body(error), 0
        reply = form(started.model, started.fingerprint, logprobs=call.logprobs)
        tokens = sum(completion.completion_tokens for completion in completions)
        return 200, reply.whole(completions, call.requests[0].n), tokens

    def _only_model(self) -> str:
        manifests = self._registry.list()
        if len(manifests) != 1:
            raise InvalidRequest("a request names no model", expected="the id of a registered model")
        return str(manifests[0].id)
