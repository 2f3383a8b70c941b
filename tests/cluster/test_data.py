"""``Completions`` on the batches that a data set hands it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rase
from rase.cluster.data import Completions
from rase.errors import InvalidGenerationConfig, InvalidRequest
from tests.support import toys


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield toys.tiny_llama(tmp_path_factory.mktemp("data"))
    rase.unload_models()


def objects(*values: Any) -> Any:
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def test_rows_have_the_answers_that_they_have_alone(path: Path) -> None:
    options: Any = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "logprobs": 0}
    chats = objects(
        "Hi", [{"role": "user", "content": "Hello", "name": None}],
        np.array([{"role": "system", "content": "Short."}, {"role": "user", "content": "Hello"}]),
    )  # fmt: skip
    found = Completions(str(path), **options)({"id": np.arange(3), "messages": chats})
    with rase.load(str(path)) as model:
        for row in range(3):
            cell = chats[row] if isinstance(chats[row], str) else list(chats[row])
            if row == 1:
                cell = [{"role": "user", "content": "Hello"}]  # without what is None
            alone = model.chat(cell, **options).completion
            choice = alone.choices[0]
            assert found["text"][row] == choice.text and found["token_ids"][row].tolist() == choice.token_ids
            assert found["logprobs"][row].tolist() == [token.logprob for token in choice.logprobs]
            assert found["prompt_tokens"][row] == alone.prompt_tokens and found["error"][row] is None
            assert found["finish_reason"][row] == choice.finish_reason
    assert found["id"].tolist() == [0, 1, 2] and found["completion_tokens"].tolist() == [6, 6, 6]


def test_prompts_as_text_and_token_ids(path: Path) -> None:
    complete = Completions(str(path), max_tokens=4, temperature=0)
    ids = complete({"prompt": objects(np.array([5, 6, 7]), np.array([8]))})
    text = Completions(str(path), column="question", max_tokens=4, temperature=0)({"question": objects("Hi")})
    with rase.load(str(path)) as model:
        assert ids["text"][0] == str(model.complete([5, 6, 7], max_tokens=4, temperature=0))
        assert text["text"][0] == str(model.complete("Hi", max_tokens=4, temperature=0))
    assert "logprobs" not in text


def test_what_is_wrong_with_a_row_is_its_answer_and_with_all_of_them_an_error(path: Path) -> None:
    found = Completions(str(path), max_tokens=2)({"prompt": objects("x" * 100_000, "Hi", "")})
    assert "context" in found["error"][0] and found["text"][0] is None and found["error"][1] is None
    assert found["token_ids"][0].size == 0 and found["completion_tokens"].tolist()[0] == 0
    with pytest.raises(InvalidRequest, match="a column 'prompt'"):
        Completions(str(path))({"text": objects("Hi")})
    with pytest.raises(InvalidGenerationConfig):
        Completions(str(path), temperature=-1)
    with pytest.raises(InvalidRequest, match="unknown option 'top'"):
        Completions(str(path), top=1)
