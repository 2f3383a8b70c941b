"""Reading requests: every field is honoured, refused or ignored, and every error names its field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rase.errors import InvalidGenerationConfig, InvalidRequest
from rase.server import fields
from rase.server.openai import ChatBody, CompletionBody, model_of, read_chat, read_completion

MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**given: Any) -> Any:
    return read_chat(json.dumps({"messages": MESSAGES, **given}).encode())


def completion(**given: Any) -> Any:
    return read_completion(json.dumps({"prompt": "Hi", **given}).encode())


def refused(read: Any, param: str | None, **given: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(**given)
    assert caught.value.param == param, caught.value
    return caught.value


@pytest.mark.parametrize(("table", "body"), [(fields.CHAT, ChatBody), (fields.COMPLETION, CompletionBody)])
def test_honoured_fields_are_the_struct_fields(table: Any, body: Any) -> None:
    honoured = {name for name, rule in table.items() if rule.kind == "honoured"}
    assert honoured == set(body.__struct_fields__)
    assert {rule.kind for rule in table.values()} == {"honoured", "refused", "ignored"}


def test_fields_of_known_clients_are_in_the_tables() -> None:
    chat_fields = """model messages stream stream_options max_tokens max_completion_tokens temperature top_p
        frequency_penalty presence_penalty stop seed n logprobs top_logprobs logit_bias response_format tools
        tool_choice parallel_tool_calls functions function_call reasoning_effort reasoning
        chat_template_kwargs reasoning_format top_k min_p repeat_penalty repetition_penalty typical_p
        ignore_eos stop_token_ids min_tokens skip_special_tokens return_token_ids cache_salt priority grammar
        json_schema cache_prompt id_slot timings_per_token return_progress num_ctx keep_alive ttl user
        metadata store service_tier prompt_cache_key prompt_cache_retention safety_identifier verbosity
        modalities prediction web_search_options moderation"""
    assert not [name for name in chat_fields.split() if name not in fields.CHAT]
    completion_fields = (
        "model prompt suffix echo best_of n logprobs logit_bias max_tokens seed stop stream user"
    )
    assert not [name for name in completion_fields.split() if name not in fields.COMPLETION]


def test_defaults() -> None:
    request = chat().requests[0]
    config = request.config
    assert (config.max_tokens, config.temperature, config.top_k, config.seed) == (256, 0.7, 40, 0)
    assert (request.n, request.stop, config.logprobs) == (1, (), None)
    assert (chat().stream, chat().include_usage, chat().model) == (False, False, None)


def test_null_is_the_same_as_absent() -> None:
    for table, read in ((fields.CHAT, chat), (fields.COMPLETION, completion)):
        nothing = {name: None for name in table if name not in ("messages", "prompt")}
        assert read(**nothing) == read()


def test_every_ignored_field_changes_nothing() -> None:
    for table, read in ((fields.CHAT, chat), (fields.COMPLETION, completion)):
        given = {name: {"any": [1, "x"]} for name, rule in table.items() if rule.kind == "ignored"}
        assert read(**given) == read()


@pytest.mark.parametrize("name", [name for name, rule in fields.CHAT.items() if rule.kind == "refused"])
def test_refused_fields_of_chat(name: str) -> None:
    error = refused(chat, name, **{name: {"type": "something"}})
    assert error.code == "unsupported_parameter"


@pytest.mark.parametrize("name", [name for name, rule in fields.COMPLETION.items() if rule.kind == "refused"])
def test_refused_fields_of_completion(name: str) -> None:
    refused(completion, name, **{name: {"type": "something"}})


def test_refused_fields_that_ask_for_nothing_pass() -> None:
    plain = chat()
    for given in (
        {"tools": []}, {"tools": None}, {"tool_choice": "none"}, {"tool_choice": "auto"}, {"functions": []},
        {"response_format": {"type": "text"}}, {"typical_p": 1}, {"typical_p": 1.0}, {"ignore_eos": False},
        {"modalities": ["text"]}, {"skip_special_tokens": True}, {"min_tokens": 0}, {"grammar": ""},
    ):  # fmt: skip
        assert chat(**given) == plain, given
    assert completion(best_of=1, echo=False, suffix="") == completion()
    refused(completion, "echo", echo=True)
    refused(completion, "best_of", best_of=True)  # true is not 1
    assert "tools are not supported" in str(refused(chat, "tools", tools=[{"type": "function"}]))
    refused(chat, "response_format", response_format={"type": "json_object"})


def test_a_huge_value_of_a_refused_field_is_refused_without_decoding_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = json.dumps({"messages": MESSAGES, "tools": [[]] * 90_000}).encode()
    sizes: list[int] = []
    real = msgspec.json.decode
    monkeypatch.setattr(
        msgspec.json, "decode", lambda raw, **o: sizes.append(len(memoryview(raw))) or real(raw, **o)
    )
    with pytest.raises(InvalidRequest, match="tools are not supported"):
        read_chat(body)
    assert sizes == [len(body)], "only the outer object"


def test_the_number_of_messages_is_limited() -> None:
    one = {"role": "user", "content": ""}
    assert len(chat(messages=[one] * 32_768).requests[0].messages) == 32_768
    refused(chat, "messages", messages=[one] * 32_769)


def test_sampling_fields_reach_the_config() -> None:
    config = chat(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, frequency_penalty=0.2, presence_penalty=-0.3,
        repeat_penalty=1.2, seed=5, stop_token_ids=[3], logit_bias={"2": -100}, logprobs=True, top_logprobs=4,
    ).requests[0].config  # fmt: skip
    assert (config.temperature, config.top_p, config.top_k, config.min_p) == (0.5, 0.9, 7, 0.1)
    assert (config.frequency_penalty, config.presence_penalty, config.repetition_penalty) == (0.2, -0.3, 1.2)
    assert (config.seed, config.stop_tokens, config.logit_bias, config.logprobs) == (5, (3,), {2: -100.0}, 4)
    assert chat(logprobs=True).requests[0].config.logprobs == 0
    assert chat(logprobs=False).requests[0].config.logprobs is None
    assert completion(logprobs=3).requests[0].config.logprobs == 3


def test_the_smaller_token_limit_wins() -> None:
    assert chat(max_tokens=9, max_completion_tokens=5).requests[0].config.max_tokens == 5
    assert chat(max_tokens=3, max_completion_tokens=5).requests[0].config.max_tokens == 3
    assert chat(max_completion_tokens=5).requests[0].config.max_tokens == 5
    refused(chat, "max_tokens", max_tokens=0)
    refused(chat, "max_completion_tokens", max_completion_tokens=0)
    refused(chat, "max_completion_tokens", max_tokens=5, max_completion_tokens=-1)


def test_both_spellings_of_the_repetition_penalty() -> None:
    assert chat(repetition_penalty=1.3, repeat_penalty=1.3).requests[0].config.repetition_penalty == 1.3
    refused(chat, "repeat_penalty", repetition_penalty=1.3, repeat_penalty=1.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", "7"), ("seed", 1.5), ("seed", True), ("seed", -1), ("seed", 2**64), ("temperature", "x"),
        ("temperature", True), ("temperature", -0.1), ("temperature", 1e39), ("top_p", 1.5), ("top_k", 2.5),
        ("top_k", -2), ("min_p", -1), ("max_tokens", 1.5), ("max_tokens", -1), ("n", 0), ("n", -1),
        ("n", 1.5), ("n", 1000000), ("n", True), ("logprobs", 1), ("stream", "yes"),
        ("logit_bias", {"abc": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", [[2, -100]]),
        ("logit_bias", {"1": 101}), ("stop", ""), ("stop", {}), ("stop", [""]), ("stop", ["", "X"]),
        ("stop", ["x"] * 17), ("stop", "x" * 100_000), ("repetition_penalty", 0), ("repeat_penalty", 0),
        ("presence_penalty", 3), ("stop_token_ids", [-1]), ("stream_options", {"include_usage": True}),
        ("top_logprobs", 2), ("chat_template_kwargs", [1]), ("model", 3),
    ],
)  # fmt: skip
def test_bad_values_name_their_field(field: str, value: Any) -> None:
    error = refused(chat, field, **{field: value})
    assert len(str(error)) < 300


@pytest.mark.parametrize("stop", [[1], ["a", None]])
def test_wrong_types_inside_lists_name_the_place(stop: Any) -> None:
    assert refused(chat, f"stop[{len(stop) - 1}]", stop=stop)


def test_stop_strings() -> None:
    for nothing in (None, []):
        assert chat(stop=nothing).requests[0].stop == ()
    assert chat(stop="x").requests[0].stop == ("x",)
    assert chat(stop=["x", "yy"]).requests[0].stop == ("x", "yy")
    assert len(chat(stop=[str(i) for i in range(16)]).requests[0].stop) == 16


def test_minus_one_switches_top_k_off() -> None:
    assert chat(top_k=-1).requests[0].config.top_k in (0, None)
    assert chat(top_k=0).requests[0].config.top_k in (0, None)
    assert chat(top_k=2**31).requests[0].config.top_k == 2**31


def test_messages() -> None:
    def read(*messages: Any) -> list[Any]:
        return list(chat(messages=list(messages)).requests[0].messages)

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read({"role": "user", "content": parts})[0].content == "ab"
    assert read({"role": "developer", "content": "x"})[0].role == "system"
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    for assistant in ({"content": None}, {}):
        got = read({"role": "assistant", "tool_calls": [call], **assistant}, tool)
        assert (got[0].content, got[1].content, got[1].tool_call_id) == ("", "42", "c1")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"), (None, "messages"), ("x", "messages"), ([1], "messages[0]"), ([{}], "messages[0]"),
        ([{"role": "assistant"}], "messages[0].content"), ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([MESSAGES[0], {"role": "user", "content": [{"type": "image_url"}]}], "messages[1].content[0]"),
    ],
)  # fmt: skip
def test_bad_messages_name_the_place(messages: Any, param: str) -> None:
    refused(chat, param, messages=messages)


def test_prompts() -> None:
    def prompts(value: Any) -> list[Any]:
        return [request.prompt for request in completion(prompt=value).requests]

    assert prompts("a") == ["a"]
    assert prompts([1, 2]) == [[1, 2]]
    assert prompts(["a", "b"]) == ["a", "b"]
    assert prompts([[1], [2, 3]]) == [[1], [2, 3]]
    for bad in (None, [], [1, "a"], ["a", [1]], ["a"] * 17):
        refused(completion, "prompt", prompt=bad)
    refused(completion, "prompt[0]", prompt=[True])


def test_not_an_object() -> None:
    for body in (
        b"",
        b"  ",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{",
        b"{}x",
        b"{'a': 1}",
        b'{"temperature": NaN}',
    ):
        with pytest.raises(InvalidRequest) as caught:
            read_chat(body)
        assert caught.value.param in (None, "messages"), body


def test_a_byte_order_mark_is_skipped() -> None:
    body = json.dumps({"messages": MESSAGES}).encode()
    assert read_chat(b"\xef\xbb\xbf" + body) == read_chat(body)


def test_unknown_fields_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    name = "zz-unknown\r\nFORGED"
    with caplog.at_level("WARNING", logger="rase.server"):
        assert chat(**{name: 1}) == chat(**{name: 2}) == chat()
    lines = [record.getMessage() for record in caplog.records if "zz-unknown" in record.getMessage()]
    assert len(lines) == 1 and "\n" not in lines[0]


def test_unknown_fields_cannot_fill_the_memory() -> None:
    for i in range(4):
        chat(**{f"unknown-{i}-{k}": 1 for k in range(400)})
    assert len(fields._logged) <= fields._LOGGED_MAX
    refused(chat, None, **{f"unknown-{i}": 1 for i in range(2000)})


def test_config_errors_are_invalid_requests() -> None:
    assert isinstance(refused(chat, "temperature", temperature=-1), InvalidGenerationConfig)


def test_raw_values_are_not_decoded_for_unknown_fields() -> None:
    """Skipping is lazy: a value of an unknown field need not even be representable."""
    body = b'{"messages":[{"role":"user","content":"Hi"}],"zz-unknown":1' + b"0" * 400 + b"}"
    assert read_chat(body) == chat()
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=dict[str, float | list[dict[str, str]]])


@pytest.mark.parametrize(("body", "model"), [
    (b'{"messages": [{"role": "user", "content": "Hi"}], "model": "m"}', "m"),
    (b'\xef\xbb\xbf{"model": "m"}', "m"), (b'{"model": "a", "model": "b"}', "b"),
    (b"{}", None), (b'{"model": null}', None), (b'{"model": ""}', None), (b'{"model": 5}', None),
    (b"", None), (b"[]", None), (b'{"model": "m"', None), (b'{"model": "\xff"}', None),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b', "model": "m"}', None),
])  # fmt: skip
def test_the_model_is_read_first_and_nothing_else_is_judged(body: bytes, model: str | None) -> None:
    assert model_of(body) == model
