"""Read OpenAI requests: checked JSON becomes a ``Call`` of ``TextRequest``s, or an ``InvalidRequest``.

``rase.server.fields`` says what becomes of every field. Types are strict: "7" is no number and 1.5 no whole
number. ``null`` is the same as absent everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from rase import env
from rase.completion import MAX_CHOICES, ChatMessage, GenerationConfig, TextRequest, normalise_stop
from rase.duration import FOREVER, seconds
from rase.errors import InvalidRequest
from rase.server import fields
from rase.server.body import BOM, checked_json

__all__ = ["Call", "model_of", "read_chat", "read_completion"]

MAX_PROMPTS = 16
MAX_MESSAGES = 32_768  # of four tokens or more: beyond what any context holds
MAX_TOP_LOGPROBS = 20
PROMPT_DEFAULTS = {"stream": True, "temperature": 0.7, "top_p": 0.9, "max_tokens": 128}


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | msgspec.UnsetType | None = msgspec.UNSET
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Common(msgspec.Struct, kw_only=True):
    """The honoured fields that both kinds of request share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    keep_alive: float | str | None = None
    ignore_eos: bool | None = None
    timeout: float | str | None = None


class ChatBody(Common, kw_only=True):
    messages: list[Message] | None = None
    prompt: str | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_format: str | None = None


class CompletionBody(Common, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class Call:
    """What a client asks for: one ``TextRequest`` per prompt, and how to send the answer."""

    model: str | None
    requests: tuple[TextRequest, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    keep_alive: float | None = None  # seconds, as timeout
    timeout: float | None = None


B = TypeVar("B", bound=Common)


class Named(msgspec.Struct):
    """The one field that says whose request it is."""

    model: str | None = None


def model_of(body: bytes) -> str | None:
    """The model that a body names, read without a look at the rest; None where it names none or is no JSON.

    What is wrong with the body is for ``read_chat`` and ``read_completion`` to say.
    """
    try:
        return msgspec.json.decode(body.removeprefix(BOM), type=Named).model or None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_chat(body: bytes) -> Call:
    """Read the body of ``/v1/chat/completions``; raises ``InvalidRequest`` naming the field."""
    asked = _with_messages(_decode(body, ChatBody, fields.CHAT))
    if not asked.messages:
        _refuse("messages", "messages", expected="a list with at least one message")
    if len(asked.messages) > MAX_MESSAGES:
        _refuse(
            "messages", "messages", expected=f"at most {MAX_MESSAGES} messages", found=len(asked.messages)
        )
    messages = [_message(message, index) for index, message in enumerate(asked.messages)]
    wanted = _logprobs_of_chat(asked)
    limits = [limit for limit in (asked.max_tokens, asked.max_completion_tokens) if limit is not None]
    config = _config(asked, min(limits) if limits else None, wanted)
    request = TextRequest(
        messages=messages, config=config, stop=normalise_stop(asked.stop), n=_count(asked.n),
        template_kwargs=asked.chat_template_kwargs or {}, template_hints=_hints(asked),
        split_reasoning=_one_of("reasoning_format", asked.reasoning_format, _FORMATS) in ("auto", "deepseek"),
        ignore_eos=_ignore_eos(asked),
    )  # fmt: skip
    return _call(asked, (request,), wanted)


def _with_messages(asked: ChatBody) -> ChatBody:
    """A request with a prompt and no messages, as the origin's small server takes it, as a chat."""
    if asked.prompt is None:
        return asked
    if asked.messages is not None:
        _refuse("prompt", "prompt and messages are both given", expected="one of them")
    given = {
        "stream": asked.stream, "temperature": asked.temperature, "top_p": asked.top_p,
        "max_tokens": asked.max_tokens if asked.max_completion_tokens is None else 0,
    }  # fmt: skip
    unsaid = {name: PROMPT_DEFAULTS[name] for name, value in given.items() if value is None}
    return msgspec.structs.replace(asked, messages=[Message("user", asked.prompt)], **unsaid)


def read_completion(body: bytes) -> Call:
    """Read the body of ``/v1/completions``; raises ``InvalidRequest`` naming the field."""
    asked = _decode(body, CompletionBody, fields.COMPLETION)
    config = _config(asked, asked.max_tokens, asked.logprobs)
    stop, n = normalise_stop(asked.stop), _count(asked.n)
    requests = tuple(
        TextRequest(
            messages=None, prompt=prompt, config=config, stop=stop, n=n, ignore_eos=_ignore_eos(asked)
        )
        for prompt in _prompts(asked.prompt)
    )
    return _call(asked, requests, asked.logprobs)


def _decode(body: bytes, kind: type[B], table: Mapping[str, fields.Rule]) -> B:
    text = checked_json(body)
    try:
        fields.check_fields(msgspec.json.decode(text, type=dict[str, msgspec.Raw]), table)
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        param = re.sub(r"^\$\.?|`", "", path.strip("`")) or None
        what = f"{param or 'the request body'}: {what[:1].lower()}{what[1:]}"
        raise InvalidRequest(what, param=param) from None
    except (msgspec.DecodeError, RecursionError) as error:
        # A cut escape such as "\ud83d" at the end of a string is reported like a cut body.
        raise InvalidRequest(f"the request body is not valid JSON: {str(error)[:200]}") from None


def _refuse(param: str, what: str, **facts: Any) -> NoReturn:
    raise InvalidRequest(what, param=param, **facts)


def _call(body: Common, requests: tuple[TextRequest, ...], logprobs: int | None) -> Call:
    options = body.stream_options
    if options is not None and not body.stream:
        _refuse("stream_options", "stream_options is only allowed with stream", expected="stream: true")
    usage = options is not None and bool(options.include_usage)
    return Call(
        body.model or None,
        requests,
        bool(body.stream),
        usage,
        logprobs is not None,
        _duration("keep_alive", body.keep_alive),
        _timeout(body.timeout),
    )


def _ignore_eos(body: Common) -> bool:
    return bool(env.get("RASE_IGNORE_EOS")) if body.ignore_eos is None else body.ignore_eos


def _duration(name: str, value: float | str | None) -> float | None:
    try:
        return None if value is None else seconds(value)
    except ValueError:
        _refuse(name, name, expected="seconds, or a duration such as 5m", found=repr(value)[:40])


def _timeout(value: float | str | None) -> float | None:
    found = _duration("timeout", value)
    if found is not None and not 0 < found < FOREVER:
        _refuse("timeout", "timeout", expected="more than 0 seconds", found=repr(value)[:40])
    return found


def _config(body: Common, max_tokens: int | None, logprobs: int | None) -> GenerationConfig:
    penalty = body.repetition_penalty
    if body.repeat_penalty is not None:
        if penalty is not None and penalty != body.repeat_penalty:
            _refuse("repeat_penalty", "repeat_penalty and repetition_penalty are the same field",
                    expected="one of them, or equal values")  # fmt: skip
        penalty = body.repeat_penalty
    given: dict[str, Any] = {
        "max_tokens": max_tokens, "temperature": body.temperature, "top_p": body.top_p, "min_p": body.min_p,
        "top_k": 0 if body.top_k == -1 else body.top_k, "seed": body.seed, "repetition_penalty": penalty,
        "presence_penalty": body.presence_penalty, "frequency_penalty": body.frequency_penalty,
        "stop_tokens": tuple(body.stop_token_ids or ()), "logit_bias": _bias(body.logit_bias),
        "logprobs": logprobs,
    }  # fmt: skip
    try:
        return GenerationConfig(**{name: value for name, value in given.items() if value is not None})
    except InvalidRequest as error:
        error.param = _names(body).get(error.param or "", error.param)
        raise


def _names(body: Common) -> dict[str, str]:
    """Fields of the configuration that the client wrote under another name."""
    names = {"stop_tokens": "stop_token_ids"}
    if body.repetition_penalty is None:
        names["repetition_penalty"] = "repeat_penalty"
    limit = getattr(body, "max_completion_tokens", None)
    if limit is not None and (body.max_tokens is None or limit < body.max_tokens):
        names["max_tokens"] = "max_completion_tokens"
    return names


def _bias(value: dict[str, float] | None) -> dict[int, float]:
    bias = {}
    for key, number in (value or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            _refuse("logit_bias", "logit_bias", expected="token ids as keys", found=repr(key[:40]))
        bias[int(key)] = number
    return bias


def _count(n: int | None) -> int:
    if n is None:
        return 1
    if not 1 <= n <= MAX_CHOICES:
        _refuse("n", "n", expected=f"a whole number from 1 to {MAX_CHOICES}", found=str(n)[:24])
    return n


_FORMATS = ("none", "auto", "deepseek")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _hints(body: ChatBody) -> dict[str, Any]:
    """Variables for the model's own template that other servers take as fields of the request."""
    effort = _one_of("reasoning_effort", body.reasoning_effort, _EFFORTS)
    thinking = False if effort == "none" and body.enable_thinking is None else body.enable_thinking
    return {"reasoning_effort": effort, "enable_thinking": thinking, "documents": body.documents}


def _one_of(name: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is not None and value not in known:
        _refuse(name, name, expected="one of " + ", ".join(known), found=repr(value)[:40])
    return value


def _logprobs_of_chat(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        _refuse("top_logprobs", "top_logprobs needs logprobs", expected="logprobs: true")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
        _refuse("top_logprobs", "top_logprobs", expected=f"a whole number from 0 to {MAX_TOP_LOGPROBS}")
    return (body.top_logprobs or 0) if body.logprobs else None


def _message(message: Message, index: int) -> ChatMessage:
    given = {name: getattr(message, name) for name in message.__struct_fields__}
    read = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    if isinstance(message.content, list):
        read["content"] = [{"type": part.type, "text": part.text} for part in message.content]
    return ChatMessage.from_dict(read, f"messages[{index}]")


def _prompts(value: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a request: text, one list of token ids, or a list of several of either (not mixed)."""
    expected = f"a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of either"
    if value is None:
        _refuse("prompt", "prompt is missing", expected=expected)
    if isinstance(value, str):
        return [value]
    kinds = {type(item) for item in value}
    if len(kinds) != 1:
        _refuse("prompt", "prompt", expected=expected, found="a mixed list" if kinds else "an empty list")
    if kinds == {int}:
        return [[item for item in value if isinstance(item, int)]]
    if len(value) > MAX_PROMPTS:
        _refuse("prompt", "prompt", expected=expected, found=f"{len(value)} prompts")
    return [item for item in value if not isinstance(item, int)]
