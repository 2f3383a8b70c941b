"""ChatMessage and the checks on a list of messages, each naming the field that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rase.errors import InvalidRequest

__all__ = ["ROLES", "ChatMessage", "parse_messages"]

ROLES = ("system", "user", "assistant", "tool")
_ALIASES = {"developer": "system", "function": "tool"}


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation.

    ``content`` is text; None and a missing content (an assistant message that only calls tools) become "".
    A list of parts is joined if all are text parts. Raises ``InvalidRequest`` naming the field.
    """

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def __post_init__(self) -> None:
        checked = _check(self.__dict__, "")
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @classmethod
    def from_dict(cls, value: object, where: str = "") -> ChatMessage:
        """Read a message as the OpenAI API writes it; ``where`` (``messages[3]``) prefixes the named field.

        Unknown fields are ignored. Raises ``InvalidRequest``.
        """
        if isinstance(value, ChatMessage):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRequest(
                "a message must be an object", param=where or None, found=type(value).__name__
            )
        fields = _check(value, where, required=True)
        message = cls.__new__(cls)
        for field in cls.__dataclass_fields__:
            object.__setattr__(message, field, fields.get(field))
        return message

    def as_dict(self) -> dict[str, Any]:
        """The message as a chat template sees it: JSON types, no key without a value, content always text."""
        fields = {key: value for key, value in self.__dict__.items() if value is not None}
        if self.tool_calls:
            fields["tool_calls"] = [_plain_call(call) for call in self.tool_calls]
        return fields


def parse_messages(value: object) -> list[ChatMessage]:
    """Read the ``messages`` of a chat request. Raises ``InvalidRequest`` whose ``param`` names the field."""
    if not isinstance(value, (list, tuple)):
        found = "nothing" if value is None else type(value).__name__
        raise InvalidRequest("messages must be a list of messages", param="messages", found=found)
    if not value:
        raise InvalidRequest("messages is empty", param="messages", expected="at least one message")
    return [ChatMessage.from_dict(message, f"messages[{index}]") for index, message in enumerate(value)]


def join_parts(content: Iterable[object], where: str) -> str:
    """The text of a content given as parts. Raises ``InvalidRequest`` for a part that is not text."""
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else part if isinstance(part, str) else None
        if not isinstance(text, str) or kind not in (None, "text", "input_text", "output_text"):
            raise InvalidRequest(
                "this model takes text only",
                param=f"{where}[{index}]",
                expected='parts of the form {"type": "text", "text": "…"}',
                found=repr(kind) if kind is not None else type(part).__name__,
            )
        texts.append(text)
    return "".join(texts)


def _check(value: Mapping[str, Any], where: str, required: bool = False) -> dict[str, Any]:
    def field(name: str) -> str:
        return f"{where}.{name}" if where else name

    role = value.get("role")
    role = _ALIASES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise InvalidRequest(
            "unknown role of a message",
            param=field("role"),
            expected="one of " + ", ".join(ROLES),
            found=repr(role)[:80],
        )
    calls = _check_calls(value.get("tool_calls"), field("tool_calls"))
    if calls and role != "assistant":
        raise InvalidRequest("only an assistant message calls tools", param=field("tool_calls"), found=role)
    content = value.get("content")
    if isinstance(content, (list, tuple)):
        content = join_parts(content, field("content"))
    elif content is None:
        # Servers send null beside a tool call and get it back; an assistant may also have answered nothing.
        if role != "assistant" or (required and "content" not in value and not calls):
            raise InvalidRequest(
                "a message without content", param=field("content"), expected="text", found="nothing"
            )
        content = ""
    elif not isinstance(content, str):
        raise InvalidRequest(
            "content must be text or a list of text parts",
            param=field("content"),
            found=type(content).__name__,
        )
    checked: dict[str, Any] = {"role": role, "content": content, "tool_calls": calls}
    for name in ("name", "tool_call_id"):
        checked[name] = _optional_text(value.get(name), field(name))
    reasoning = next(
        (value[key] for key in ("reasoning_content", "reasoning") if value.get(key) is not None), None
    )
    checked["reasoning_content"] = _optional_text(reasoning, field("reasoning_content"))
    return checked


def _optional_text(value: object, param: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{param} must be text", param=param, found=type(value).__name__)
    return value


def _check_calls(value: object, param: str) -> list[Mapping[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest("tool_calls must be a list", param=param, found=type(value).__name__)
    for index, call in enumerate(value):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                "a tool call must have a function with a name",
                param=f"{param}[{index}].function",
                found=repr(call)[:80],
            )
        if not isinstance(function.get("arguments", ""), (str, Mapping)):
            raise InvalidRequest(
                "the arguments of a tool call must be JSON text",
                param=f"{param}[{index}].function.arguments",
                found=type(function["arguments"]).__name__,
            )  # fmt: skip
    return list(value) or None


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call whose arguments are an object where their text is one: templates write them with tojson."""
    function = dict(call["function"])
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        function["arguments"] = parsed if isinstance(parsed, dict) else arguments
    plain = {key: value for key, value in call.items() if value is not None}
    return {"type": "function", **plain, "function": {k: v for k, v in function.items() if v is not None}}
