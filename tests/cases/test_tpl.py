"""Bug cases TPL: chat templates and messages (the text layer's half)."""

from __future__ import annotations

import json

import pytest

from rase.errors import InvalidRequest
from rase.text.chat import ChatTemplate, parse_messages
from tests.support.toy_tokenizers import CHATML

NAMES = ("chatml", "llama3", "mistral")
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def every_template() -> list[ChatTemplate]:
    return [*(ChatTemplate.named(name) for name in NAMES), ChatTemplate.from_source(CHATML)]


def test_tpl_1_a_chat_of_one_system_message() -> None:
    messages = [{"role": "system", "content": "S"}]
    wanted = {
        "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>assistant\n",
        "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "mistral": "<s>[INST] S [/INST]",
    }
    for name in NAMES:
        assert ChatTemplate.named(name).render(messages) == wanted[name]
    assert ChatTemplate.from_source(CHATML).render(messages) == wanted["chatml"]


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_tpl_3_null_content_beside_a_tool_call(content: dict) -> None:
    messages = [
        {"role": "user", "content": "use f"},
        {"role": "assistant", **content, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    for template in every_template():
        prompt = template.render(messages)
        assert "None" not in prompt and "null" not in prompt, template.name
        assert "42" in prompt, template.name


def test_tpl_3_the_arguments_of_a_call_reach_the_template_as_an_object() -> None:
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}"
    call = {"function": {"name": "f", "arguments": '{"city": "Zürich <b>"}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert ChatTemplate.from_source(source).render(messages) == '{"city": "Zürich <b>"}'


@pytest.mark.parametrize(
    "content", ["Sure, here", [{"type": "text", "text": "Sure,"}, {"type": "text", "text": " here"}]]
)
def test_tpl_5_a_final_answer_is_a_closed_turn(content: object) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    wanted = {
        "chatml": "Sure, here<|im_end|>\n<|im_start|>assistant\n",
        "llama3": "Sure, here<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "mistral": "<s>[INST] Hi [/INST] Sure, here</s>",
        "gguf": "Sure, here<|im_end|>\n<|im_start|>assistant\n",
    }
    for template in every_template():
        assert template.render(messages).endswith(wanted[template.name])
        assert not template.render(messages, add_generation_prompt=False).endswith("assistant\n")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("x", "messages"),
        ([1], "messages[0]"),
        ([None], "messages[0]"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "user", "content": "Hi"}, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, 1]}], "messages[0].content[1]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": "f"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:40],
)
def test_tpl_7_each_wrong_message_is_refused_and_named(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages(messages)
    assert caught.value.param == param


def test_tpl_7_an_empty_message_is_a_message() -> None:
    assert ChatTemplate.named("chatml").render([{"role": "user", "content": ""}]) == (
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )
    for content in ([], [{"type": "text", "text": ""}]):
        assert parse_messages([{"role": "user", "content": content}])[0].content == ""
    assert parse_messages([{"role": "assistant", "content": None}])[0].content == ""


def test_tpl_7_roles_of_other_clients() -> None:
    roles = [
        message.role
        for message in parse_messages([{"role": r, "content": "x"} for r in ("developer", "function")])
    ]
    assert roles == ["system", "tool"]
