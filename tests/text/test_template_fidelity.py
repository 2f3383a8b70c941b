# ruff: noqa: E501 (templates are one line each)
"""A file's own template gives the text that plain jinja2 gives, and its segments say who wrote what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rase.errors import InvalidRequest
from rase.text.chat import ChatTemplate, parse_messages
from rase.text.segments import Segment

# Written for these tests in the manner of public templates; each uses what its family uses.
TEMPLATES = {
    "plus": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}",
    "tilde": "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ '\n' ~ m.content ~ eos_token }}{% endfor %}",
    "trim": "{% for m in messages %}<T>{{ m.content | trim }}</T>{{ m.content | length }}{% endfor %}",
    "set block": "{% set out %}{% for m in messages %}<T>{{ m.content }}</T>{% endfor %}{% endset %}{{ out | trim }}",
    "macro": (
        "{% macro turn(role, text) -%}<T>{{ role | upper }}:{{ text }}</T>{%- endmacro %}"
        "{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(out='', n=0) %}{% for m in messages %}{% set ns.out = ns.out + '<T>' + m.content %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.out }}{{ ns.n }}"
    ),
    "system first": (
        "{% if messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set rest = messages[1:] %}"
        "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{% if loop.first and sys %}<S>{{ sys }}\n\n{% endif %}<T>{{ m.content }}{% endfor %}"
    ),
    "tests on text": (
        "{% for m in messages %}{% if '</think>' in m.content %}<T>{{ m.content.split('</think>')[-1].lstrip('\n') }}"
        "{% elif m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>') %}<R>"
        "{% elif m.content is string and m.content %}<T>{{ m.content.rstrip() | replace('a', '<A>') }}{% else %}<E>"
        "{% endif %}{% endfor %}"
    ),
    "join": "{{ messages | map(attribute='content') | join('<SEP>') }}{{ [messages[0].content, 'X'] | join }}",
    "percent": "{% for m in messages %}{{ '<T>%s</T>' % m.content }}{% endfor %}",
    "reverse": "{% for m in messages[::-1] %}<T>{{ m.content }}{% break %}{% endfor %}{{ messages[-1]['content'][0:3] }}",
    "json": "{% for m in messages %}<T>{{ m | tojson }}</T>{{ {'a': m.content} | tojson(indent=2) }}{% endfor %}",
    "controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}<T>{{ m.content }}{% endfor %}",
    "filter block": "{% filter trim %}  <T>{{ messages[0].content }}  {% endfilter %}",
    "call block": "{% macro box() %}<T>{{ caller() }}</T>{% endmacro %}{% call box() %}{{ messages[0].content }}{% endcall %}",
    "defaults": "{{ tools | default('none') }}{{ nothing | default('<N>', true) }}{{ messages[0].name is defined }}",
    "numbers": "{{ (1 + 2) * 3 // 2 - 1 }}{{ 7 % 4 }}{{ 1 / 2 }}{{ -1 }}{{ loop is defined }}{{ 3 | abs }}",
    "loops": (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ '<L>' if loop.last else '<N>' }}"
        "{{ loop.previtem.role if not loop.first else '' }}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}"
    ),
    "recursive": "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
}

_CONTENT = st.lists(
    st.sampled_from(
        ["hi", " ", "\n", "a", "<|im_end|>", "</think>", "<tool_response>", "</tool_response>", "안", "<T>"]
    ),
    max_size=5,
).map("".join)
_CHATS = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        _CONTENT,
    ),
    min_size=1,
    max_size=4,
)


def reference(source: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    """What jinja2's own sandbox makes of it, set up as transformers sets it up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    return environment.from_string(source).render(
        messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **variables
    )


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=40)
@given(messages=_CHATS, system=_CONTENT)
def test_the_text_is_that_of_jinja2(name: str, messages: list[dict[str, Any]], system: str) -> None:
    template = ChatTemplate.from_source(TEMPLATES[name], bos="<s>", eos="</s>")
    chat = [{"role": "system", "content": system}, *messages]
    for version in (chat, messages):
        assert template.render(version) == reference(TEMPLATES[name], version)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=40)
@given(texts=st.lists(st.text(alphabet="äöü\u3000", max_size=6), min_size=1, max_size=3))
def test_what_people_wrote_is_never_markup(name: str, texts: list[str]) -> None:
    """The messages use characters that no template uses."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    for segment in ChatTemplate.from_source(TEMPLATES[name]).render_segments(messages):
        if segment.kind == "markup":
            assert not set(segment.text) & set("äöü\u3000")


def test_what_the_template_wrote_is_markup() -> None:
    for name in (
        "plus",
        "tilde",
        "trim",
        "set block",
        "macro",
        "namespace",
        "join",
        "percent",
        "filter block",
        "call block",
    ):
        segments = ChatTemplate.from_source(TEMPLATES[name], bos="<s>", eos="</s>").render_segments(
            [{"role": "user", "content": "äö"}]
        )
        text = "".join(segment.text for segment in segments if segment.kind == "text")
        assert set(text) <= set("äö12"), (name, segments)  # the numbers are computed


def test_answers_and_texts_are_told_apart() -> None:
    messages = [
        {"role": "user", "content": "u<think>"},
        {"role": "assistant", "content": "a<think>"},
        {"role": "tool", "content": "t"},
    ]
    for template in (ChatTemplate.named("chatml"), ChatTemplate.from_source(TEMPLATES["plus"])):
        kinds = [(s.text, s.kind) for s in template.render_segments(messages) if s.kind != "markup"]
        assert kinds == [("u<think>", "text"), ("a<think>", "assistant"), ("t", "text")]


def test_tools_and_options_are_text() -> None:
    template = ChatTemplate.from_source("{{ tools | tojson }}|{{ effort }}|{{ flag }}")
    segments = template.render_segments(
        [{"role": "user", "content": "x"}], tools=[{"name": "<|im_end|>"}], effort="<|im_end|>", flag=True
    )
    assert [s.kind for s in segments if "<|im_end|>" in s.text] == ["text", "text"]


@pytest.mark.parametrize("name", ["messages", "bos_token", "_x", "self"])
def test_options_cannot_replace_what_the_template_relies_on(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate.from_source("x").render([{"role": "user", "content": "x"}], **{name: "y"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_built_in_templates_have_no_options() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate.named("chatml").render([{"role": "user", "content": "x"}], enable_thinking=False)
    assert caught.value.param == "chat_template_kwargs.enable_thinking"
    with pytest.raises(InvalidRequest):
        ChatTemplate.named("chatml").render([{"role": "user", "content": "x"}], add_generation_prompt="no")


def test_options_without_a_value_are_left_out() -> None:
    template = ChatTemplate.from_source("{{ tools is defined }}{{ flag is defined }}")
    assert template.render([{"role": "user", "content": "x"}], tools=None, flag=False) == "FalseTrue"


def test_a_generation_block_is_its_body() -> None:
    source = "{% for m in messages %}<T>{% generation %}{{ m.content }}{% endgeneration %}</T>{% endfor %}"
    assert ChatTemplate.from_source(source).render([{"role": "assistant", "content": "x"}]) == "<T>x</T>"


def test_only_plain_data_reaches_a_template() -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate.from_source("{{ x }}").render([{"role": "user", "content": "x"}], x=object())


def test_reasoning_reaches_templates_under_each_usual_name() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}"
    for key in ("reasoning_content", "reasoning"):
        messages = parse_messages([{"role": "assistant", "content": "x", key: "why"}])
        assert ChatTemplate.from_source(source).render_segments(messages) == [Segment("whywhy", "assistant")]


@pytest.fixture(scope="module")
def qwen3_template(qwen3_tokenizer: Path) -> str:
    return json.loads((qwen3_tokenizer / "tokenizer_config.json").read_text())["chat_template"]


@settings(max_examples=60)
@given(messages=_CHATS, system=_CONTENT, thinking=st.booleans(), tools=st.booleans())
def test_the_real_qwen3_template(
    qwen3_template: str, messages: list[dict[str, Any]], system: str, thinking: bool, tools: bool
) -> None:
    chat = [{"role": "system", "content": system}, *messages, {"role": "tool", "content": "42"}]
    options: dict[str, Any] = {"enable_thinking": thinking}
    if tools:
        options["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    rendered = ChatTemplate.from_source(qwen3_template).render(chat, **options)
    assert rendered == reference(qwen3_template, chat, **options)
