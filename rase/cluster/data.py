"""``Completions``: answers to the rows of a Ray data set.

    ray.data.read_json("questions.jsonl").map_batches(
        Completions, fn_constructor_kwargs={"model": "smollm2", "max_tokens": 64},
        batch_size=64, concurrency=2, num_cpus=1,
    ).write_parquet("answers")

Each of the ``concurrency`` processes loads the model once; the rows of a batch run together. An answer has
the bits that it has anywhere else, whatever shares its batch.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rase import env
from rase.errors import InvalidRequest
from rase.model import Options, load, request_of

__all__ = ["Completions"]

_THREADS = ("RASE_NUM_THREADS", "CANDLE_NUM_THREADS", "RAYON_NUM_THREADS")


class Completions:
    """A class for ``Dataset.map_batches``, with batches of NumPy arrays (Ray's default).

    A row has ``messages`` (a list of messages, or a string: one user message) or else ``prompt`` (text or
    token ids, continued as they are); ``column`` names another column for whichever ``chat`` says. It gains

    =====================  =====================================================================
    ``text``               the answer, None where there is none
    ``token_ids``          its tokens, int64
    ``finish_reason``      ``stop`` or ``length``
    ``prompt_tokens``      their number, and ``completion_tokens``
    ``logprobs``           natural logarithms, float64, one for each token; with the option ``logprobs``
    ``error``              what is wrong with the row, else None
    =====================  =====================================================================
    """

    def __init__(
        self, model: str, *, store: str | None = None, device: str = "auto", column: str | None = None,
        chat: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """``options`` are those of ``rase.Model.chat``.

        Raises ``InvalidRequest`` for options that are wrong, and what ``rase.load`` raises.
        """
        request_of(cast(Options, options), prompt="")
        _use_assigned_processors()
        self._model = load(model, store, device)
        self._column, self._chat, self._options = column, chat, options
        self._together = 2 * env.get("RASE_MAX_BATCH_SEQS")

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the rows of ``batch``. Raises ``InvalidRequest`` without the column."""
        chat = "messages" in batch if self._chat is None else self._chat
        column = self._column or ("messages" if chat else "prompt")
        if column not in batch:
            raise InvalidRequest("the batch", expected=f"a column '{column}'", found=", ".join(batch))
        answers = asyncio.run(self._answer([*batch[column]], chat))
        return {**batch, **_columns(answers, self._options.get("logprobs") is not None)}

    async def _answer(self, rows: list[Any], chat: bool) -> list[Any]:
        """A completion for each row, or the ``InvalidRequest`` that it is."""
        places = asyncio.Semaphore(self._together)

        async def one(row: Any) -> Any:
            async with places:
                try:
                    if chat:
                        answer = await self._model.achat(_messages(row), **self._options)
                    else:
                        answer = await self._model.acomplete(_prompt(row), **self._options)
                except InvalidRequest as error:
                    return error
                return answer.completion

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(row)) for row in rows]
        return [task.result() for task in tasks]


def _use_assigned_processors() -> None:
    """Compute with as many threads as Ray has kept processors, unless the environment says how many."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or any(os.environ.get(name) for name in _THREADS):
        return
    count = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
    if count:
        os.environ |= {"RASE_NUM_THREADS": str(count), "RAYON_NUM_THREADS": str(count)}


def _messages(cell: Any) -> Any:
    """A chat as a cell holds it: fields that other rows have are None here, and lists are arrays."""
    if isinstance(cell, str):
        return cell
    return [{name: value for name, value in message.items() if value is not None} for message in cell]


def _prompt(cell: Any) -> Any:
    return cell if isinstance(cell, str) else [int(id) for id in cell]


def _columns(answers: list[Any], logprobs: bool) -> dict[str, Any]:
    good = [None if isinstance(answer, Exception) else answer for answer in answers]
    choices = [answer and answer.choices[0] for answer in good]
    errors = [str(answer) if isinstance(answer, Exception) else None for answer in answers]
    columns = {
        "text": _objects([choice and choice.text for choice in choices]),
        "token_ids": _objects([np.array(choice.token_ids if choice else [], np.int64) for choice in choices]),
        "finish_reason": _objects([choice and choice.finish_reason for choice in choices]),
        "prompt_tokens": np.array([answer.prompt_tokens if answer else 0 for answer in good]),
        "completion_tokens": np.array([answer.completion_tokens if answer else 0 for answer in good]),
        "error": _objects(errors),
    }
    if logprobs:
        columns["logprobs"] = _objects([
            np.array([token.logprob for token in choice.logprobs] if choice else [], np.float64)
            for choice in choices
        ])  # fmt: skip
    return columns


def _objects(values: list[Any]) -> Any:
    """An array of whatever these are, which NumPy is not to look into."""
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array
