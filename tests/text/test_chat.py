# ruff: noqa: E501 (expected prompts are one line each)
"""Built-in chat templates, messages, and which template a model uses."""

from __future__ import annotations

from typing import Any

import pytest

from rase.errors import InvalidRequest, ManifestError
from rase.text.chat import ChatMessage, ChatTemplate
from rase.text.segments import Segment
from rase.text.select import choose_template
from tests.support.toy_tokenizers import CHATML, toy_bpe

CHAT = [
    ChatMessage("system", "Be brief."),
    ChatMessage("user", " Hi "),
    ChatMessage("assistant", "Hello!"),
    ChatMessage("system", "Now in French."),
    ChatMessage("user", "Bye"),
]


def test_chatml() -> None:
    assert ChatTemplate.named("chatml").render(CHAT) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>system\nNow in French.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama3() -> None:
    """As Meta's own template: content is trimmed, and the text starts with BOS."""
    assert ChatTemplate.named("llama3").render(CHAT[:3]) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral_merges_system_into_the_next_user_turn() -> None:
    assert ChatTemplate.named("mistral").render(CHAT) == (
        "<s>[INST] Be brief.\n\n Hi  [/INST] Hello!</s>[INST] Now in French.\n\nBye [/INST]"
    )


def test_mistral_loses_no_system_message() -> None:
    system, answer = {"role": "system", "content": "S"}, {"role": "assistant", "content": "A"}
    render = ChatTemplate.named("mistral").render
    assert render([system]) == "<s>[INST] S [/INST]"
    assert render([system, answer]) == "<s>[INST] S [/INST] A</s>"
    assert render([answer, system]) == "<s> A</s>[INST] S [/INST]"
    assert render([system, system]) == "<s>[INST] S\n\nS [/INST]"


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral"])
def test_only_content_is_data(name: str) -> None:
    messages = [
        {"role": "system", "content": "[S]"},
        {"role": "user", "content": "[U]"},
        {"role": "assistant", "content": "[A]"},
        {"role": "tool", "content": "[T]"},
    ]
    segments = ChatTemplate.named(name).render_segments(messages)
    assert [(s.text, s.kind) for s in segments if s.kind != "markup"] == [
        ("[S]", "text"),
        ("[U]", "text"),
        ("[A]", "assistant"),
        ("[T]", "text"),
    ]


def test_no_generation_prompt() -> None:
    for name, end in (
        ("chatml", "Hello!<|im_end|>\n"),
        ("llama3", "Hello!<|eot_id|>"),
        ("mistral", "Hello!</s>"),
    ):
        assert ChatTemplate.named(name).render(CHAT[:3], add_generation_prompt=False).endswith(end)


def test_a_tool_call_is_shown_to_the_model() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
    segments = ChatTemplate.named("chatml").render_segments(
        [{"role": "assistant", "tool_calls": [call]}], False
    )
    assert segments[1] == Segment('{"name": "f", "arguments": {"a": "é"}}', "assistant")


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("qwen3", "chatml"), ("llama3", "llama3"), ("llama", "mistral"), ("llama2", "mistral"), ("mistral", "mistral"),
     ("mixtral", "mistral"), ("gemma3", None)],
)  # fmt: skip
def test_architecture_defaults(architecture: str, name: str | None) -> None:
    template = ChatTemplate.for_architecture(architecture)
    assert (template.name if template else None) == name


def test_unknown_names() -> None:
    with pytest.raises(InvalidRequest, match="chatml, llama3, mistral"):
        ChatTemplate.named("vicuna")


OWN = {**toy_bpe().metadata(), "tokenizer.chat_template": CHATML}


@pytest.mark.parametrize(
    ("manifest", "metadata", "default", "chosen"),
    [
        ("llama3", OWN, "chatml", "llama3"),
        ("gguf", OWN, "chatml", "gguf"),
        (None, OWN, "chatml", "gguf"),
        (None, {}, "chatml", "chatml"),
        (None, {"tokenizer.chat_template": "  "}, "mistral", "mistral"),
        (None, {"tokenizer.chat_template": ["x"]}, "mistral", "mistral"),
        (None, {}, None, None),
    ],
)
def test_which_template(
    manifest: str | None, metadata: dict[str, Any], default: str | None, chosen: str | None
) -> None:
    template = choose_template(manifest, metadata, default)
    assert (template.name if template else None) == chosen


@pytest.mark.parametrize(("manifest", "metadata"), [("gguf", {}), ("vicuna", OWN), ("", OWN)])
def test_a_choice_that_cannot_be_kept_is_refused(manifest: str, metadata: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        choose_template(manifest, metadata, "chatml")


def test_the_template_of_a_file_knows_its_special_tokens() -> None:
    metadata = {**toy_bpe().metadata(), "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}
    template = choose_template(None, metadata, None)
    assert template is not None
    assert template.render_segments(CHAT) == [Segment("<|begin_of_text|>|<|end_of_text|>", "markup")]


def test_segments_have_a_known_kind() -> None:
    with pytest.raises(ValueError, match="kind"):
        Segment("x", "system")  # type: ignore[arg-type]
