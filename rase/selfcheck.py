"""``self_check``: a loaded model computes a prompt and decodes, twice, before it is called ready."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rase.errors import BackendError

if TYPE_CHECKING:
    from rase.session import ModelSession

__all__ = ["self_check"]

PROMPT, ANSWER = 64, 3  # tokens; the prompt is long enough to learn the pace of this machine from


def self_check(session: ModelSession, timeout: float = 120.0) -> None:
    """Compute a prompt and an answer through the scheduler, and the same again: the ids must be equal.

    The prefix cache is neither asked nor filled. Raises ``BackendError`` when the ids differ, are none or are
    not there after ``timeout`` seconds, ``InvalidLogits``, and what else ends a request.
    """
    first, second = (_answer(session, time.monotonic() + timeout) for _ in range(2))
    if first != second or len(first) != ANSWER:
        raise BackendError(
            f"the self-check of model '{session.id}'", expected=f"{ANSWER} tokens, the same ones twice",
            found=f"{first} and {second}", hint="Machine or build is broken; see `rase runtime probe`.",
        )  # fmt: skip


def _answer(session: ModelSession, deadline: float) -> list[int]:
    from rase.engine.config import GenerationConfig
    from rase.engine.request import Request

    scheduler = session.scheduler
    ids: list[int] = []
    length = max(1, min(PROMPT, session.context_length - ANSWER, scheduler.pool.most_tokens - ANSWER))
    prompt = [position % scheduler.vocab_size for position in range(length)]
    request = Request(
        prompt, GenerationConfig(max_tokens=ANSWER, temperature=0.0), reuse=False, deadline=deadline,
        on_token=lambda choice, sampled: ids.append(sampled.id),
    )  # fmt: skip
    scheduler.submit(request)
    if not request.wait(deadline + 1.0 - time.monotonic()):
        request.cancel()
        raise BackendError(f"the self-check of model '{session.id}'", found="no answer")
    if request.error is not None:
        raise request.error
    return ids
