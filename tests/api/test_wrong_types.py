"""Values of the wrong type, as somebody's JSON brings them: a typed error, not a TypeError from inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rase
from rase.errors import ContextLengthExceeded, EngineError, InvalidRequest
from rase.registry import pull

NO_TEXT: list[Any] = [None, True, 0, 1.5, float("nan"), [], [None], {}, {"a": 1}, (), b"x", np.array(1)]


@pytest.fixture(scope="module")
def model(endless_path: Path) -> rase.Model:
    return rase.load(endless_path)


def refused(call: Callable[[], object], kind: type[EngineError] = InvalidRequest) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", NO_TEXT, ids=repr)
def test_what_is_no_text_is_refused_where_text_is_wanted(model: rase.Model, value: Any) -> None:
    refused(lambda: model.tokenize(value))
    refused(lambda: model.chat(value))


@pytest.mark.parametrize(
    "value", [None, 5, "a", b"a", [True], [1.5], [None], ["a"], [[1]], [{}], [2**70]], ids=repr
)
def test_what_is_no_list_of_ids_is_refused(model: rase.Model, value: Any) -> None:
    refused(lambda: model.detokenize(value))


@pytest.mark.parametrize("value", [True, 5, 1.5, [1.5], ["a"], [None], {"a": 1}, np.array(1)], ids=repr)
def test_prompts_that_are_neither_text_nor_ids(model: rase.Model, value: Any) -> None:
    refused(lambda: model.complete(value))
    refused(lambda: model.stream_completion(value))


@pytest.mark.parametrize("value", [None, 5, "x", [], ["a"], {1: 2}, {None: 1}], ids=repr)
def test_template_kwargs_that_are_no_names_with_values(model: rase.Model, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.chat("Hi", template_kwargs=value)
    assert caught.value.param == "template_kwargs"


def test_an_array_without_dimensions_is_no_list(model: rase.Model) -> None:
    refused(lambda: model.chat("Hi", stop_tokens=np.array(1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, True, 5, 1.5, [], {}, "", "a\0b"], ids=repr)
def test_what_is_no_path_is_refused_where_a_path_is_wanted(
    value: Any, tmp_path: Path, endless_path: Path
) -> None:
    store = tmp_path / "store"
    registry = rase.ModelRegistry.open(store)
    registry.import_local("m", endless_path)
    refused(lambda: rase.load(value, store=store), EngineError)
    refused(lambda: registry.import_local("q", value))
    refused(lambda: registry.attach_tokenizer("m", value))
    refused(lambda: pull(registry, value, "q"))
    if value is not None:
        refused(lambda: rase.load("m", store=value))
        refused(lambda: rase.load(endless_path, tokenizer=value))
    assert registry.ids() == ["m"]


@pytest.mark.parametrize("value", [True, 5, [], {}, {"a": 1}, "none such"], ids=repr)
def test_options_of_a_file_of_the_wrong_type(value: Any, endless_path: Path) -> None:
    refused(lambda: rase.load(endless_path, architecture=value), EngineError)
    refused(lambda: rase.load(endless_path, chat_template=value), EngineError)
    if value != 5:
        refused(lambda: rase.load(endless_path, context_length=value), EngineError)


def test_a_list_of_ids_that_cannot_fit_is_not_copied_first(model: rase.Model) -> None:
    with pytest.raises(ContextLengthExceeded, match="1000000000 tokens"):
        model.complete(range(10**9))
    assert model.complete([104], max_tokens=3, temperature=0) == "abc"  # the next call is right
