"""Reasoning apart from the text in Python, and the variables of a model's own chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

import rase
from rase.errors import ChatTemplateError, InvalidRequest
from tests.support import toys
from tests.support.toy_tokenizers import CHATML

PIECES = ["<think>a ", "b", "</think>\n", "hi", " you"]
# Says what it was given, and refuses the chat with it: a cheap way to see what reaches a template.
TELLS = (
    "{{ raise_exception([enable_thinking, reasoning_effort, tools, documents, extra] | tojson) if probe "
    "else '<|im_start|>assistant\\n' }}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("thinkers")
    return toys.chain(folder, PIECES, tokenizer=toys.toy_bpe(pieces=PIECES), name="thinker")


def test_reasoning_is_told_from_the_text(thinker):
    with rase.load(thinker) as model:
        plain = model.chat("Hi", temperature=0)
        assert plain == "".join(PIECES) and plain.completion.choices[0].reasoning is None
        told = model.chat("Hi", temperature=0, split_reasoning=True)
        choice = told.completion.choices[0]
        assert (told, choice.reasoning) == ("hi you", "a b")
        assert choice.token_ids == plain.completion.choices[0].token_ids, "the same tokens"
        assert choice.reasoning_tokens == 3
        stream = model.stream("Hi", temperature=0, split_reasoning=True)
        assert "".join(stream) == "hi you"
        assert stream.completion.choices[0].reasoning == "a b"
        cut = model.chat("Hi", temperature=0, split_reasoning=True, max_tokens=2).completion.choices[0]
        assert (cut.text, cut.reasoning, cut.finish_reason, cut.reasoning_tokens) == ("", "a b", "length", 2)
        stopped = model.chat("Hi", temperature=0, split_reasoning=True, stop=" you").completion.choices[0]
        assert (stopped.text, stopped.reasoning, stopped.finish_reason) == ("hi", "a b", "stop")


@pytest.mark.parametrize(
    ("ending", "reasoning", "text"),
    [("<think>\\n", "a b", "hi you"), ("<think>\\n\\n</think>\\n\\n", None, None)],
    ids=["the prompt opens it", "the prompt closes it"],
)
def test_what_the_template_wrote_counts(tmp_path, ending, reasoning, text):
    pieces = ["a ", "b", "</think>", "hi", " you"] if reasoning else ["say ", "<think>", "hi"]
    template = CHATML.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n" + ending)
    path = toys.chain(tmp_path, pieces, tokenizer=toys.toy_bpe(pieces=pieces), chat_template=template)
    with rase.load(path) as model:
        choice = model.chat("Hi", temperature=0, split_reasoning=True).completion.choices[0]
    assert (choice.reasoning, choice.text) == ((reasoning, text) if reasoning else ("", "say <think>hi"))


def test_options_reach_the_template(tmp_path):
    path = toys.chain(tmp_path, ["x"], tokenizer=toys.toy_bpe(pieces=["x"]), chat_template=TELLS)
    given = {
        "enable_thinking": False, "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "documents": [{"title": "t", "text": "d"}],
    }  # fmt: skip
    with rase.load(path) as model:
        with pytest.raises(ChatTemplateError) as caught:
            model.chat("Hi", template_kwargs={"extra": 7, "probe": True}, **given)
        said = str(caught.value)
        for part in ("false", '"low"', '"name": "f"', '"title": "t"', "7"):
            assert part in said, said
        assert model.chat("Hi", temperature=0, max_tokens=1) == "x"
        for wrong in ("yes", 1, None):
            with pytest.raises(InvalidRequest, match="split_reasoning"):
                model.chat("Hi", split_reasoning=wrong)


def test_a_built_in_template_has_no_variables(tmp_path):
    path = toys.chain(tmp_path, ["x"], tokenizer=toys.toy_bpe(pieces=["x"]), chat_template=None)
    with rase.load(path, chat_template="chatml") as model:
        with pytest.raises(InvalidRequest, match="no options"):
            model.chat("Hi", enable_thinking=True)
        assert model.chat("Hi", temperature=0, max_tokens=1) == "x"
