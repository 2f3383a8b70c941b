"""Bug cases THK: thinking tags."""

from __future__ import annotations

import random

import pytest

from rase.text.thinking import PromptState, ThinkSplitter, prompt_state

# (answer, reasoning, content); the last one is cut by max_tokens
THK_1 = [
    ("<think></think>hi", "", "hi"),
    ("<think>\n\n</think>\n\nhi", "", "hi"),
    ("x</think>hi", "x", "hi"),
    ("</think></think>hi", "", "hi"),
    ("<think>abc", "abc", ""),
]
MORE = [
    ("hi", "", "hi"),
    ("", "", ""),
    ("  <think> a b \n</think> hi </think> there ", "a b", "hi </think> there "),
    ("<think>a < b </ c</think>d", "a < b </ c", "d"),
    ("<thin", "", "<thin"),
    ("<think>a</thi", "a</thi", ""),
    ("<think>a</think></thi", "a", "</thi"),
    ("a <think> b", "", "a <think> b"),
    (" plain text \n", "", " plain text \n"),
]


def split(pieces: list[str], state: PromptState = "unknown") -> tuple[str, str]:
    splitter = ThinkSplitter(state)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(reasoning for reasoning, _ in parts), "".join(content for _, content in parts)


@pytest.mark.parametrize(("answer", "reasoning", "content"), THK_1 + MORE)
def test_thk_1_reasoning_and_content_come_apart(answer: str, reasoning: str, content: str) -> None:
    """Whole, letter by letter and in random pieces: the same."""
    assert split([answer]) == (reasoning, content)
    assert split(list(answer)) == (reasoning, content)
    rng = random.Random(answer)
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(answer) + 1), k=rng.randrange(4)))
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert split(pieces) == (reasoning, content), pieces


@pytest.mark.parametrize(
    ("answer", "reasoning", "content"),
    [
        ("x</think>hi", "x", "hi"),
        ("abc", "abc", ""),
        ("\n</think>\n\nhi", "", "hi"),
        (" a\n\n b </think>c", "a\n\n b", "c"),
    ],
)
def test_thk_1_the_prompt_opened_the_reasoning(answer: str, reasoning: str, content: str) -> None:
    assert split([answer], "open") == split(list(answer), "open") == (reasoning, content)


def test_thk_1_text_is_shown_as_soon_as_it_is_certain() -> None:
    splitter = ThinkSplitter()
    assert [splitter.push(p) for p in ("<think>a", " b", "c </th", "ink>\n", "d", " e")] == [
        ("a", ""), (" b", ""), ("c", ""), ("", ""), ("", "d"), ("", " e")
    ]  # fmt: skip
    assert ThinkSplitter("closed").push("hi") == ("", "hi")
    assert ThinkSplitter("open").push("hi") == ("hi", "")


def test_thk_1_what_the_prompt_says() -> None:
    assert prompt_state("<|im_start|>assistant\n<think>\n") == "open"
    assert prompt_state("<|im_start|>assistant\n<think>\n\n</think>\n\n") == "closed"
    assert prompt_state("<|im_start|>assistant\n") == prompt_state("") == "unknown"
    assert prompt_state("a user wrote <think> here\nassistant\n") == "unknown"


def test_thk_1_long_answers_cost_linear_time() -> None:
    """A megabyte in single letters: quadratic search would take minutes."""
    answer = "<" * 300_000
    assert split(["<think>", *answer, "</think>x"]) == (answer, "x")
