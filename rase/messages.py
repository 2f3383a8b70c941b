"""Messages as people write them, mappings or one string, made into ``ChatMessage`` objects or refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rase.errors import InvalidRequest

if TYPE_CHECKING:
    from rase.text.chat import ChatMessage

__all__ = ["MessagesLike", "as_messages"]

MessagesLike = "str | Sequence[Mapping[str, Any] | ChatMessage]"


def as_messages(messages: str | Sequence[Mapping[str, Any] | ChatMessage]) -> list[ChatMessage]:
    """Return ``messages`` as a list; a string is one user message.

    Raises ``InvalidRequest`` that names the message and the key: no messages, a message that is no mapping, a
    missing or unknown key, a role or content of the wrong type.
    """
    from rase.text.chat import ChatMessage

    if isinstance(messages, str):
        return [ChatMessage(role="user", content=messages)]
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise _bad("messages", "a string or a list of messages", type(messages).__name__)
    if not messages:
        raise _bad("messages", "at least one message", "none")
    result = []
    for index, message in enumerate(messages):
        if isinstance(message, ChatMessage):
            result.append(message)
            continue
        if not isinstance(message, Mapping):
            raise _bad(f"messages[{index}]", "a mapping with role and content", type(message).__name__)
        if not isinstance(message.get("role"), str):
            raise _bad(f"messages[{index}].role", "a string", repr(message.get("role")))
        content = message.get("content")
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise _bad(f"messages[{index}].content", "a string", repr(content)[:60])
        try:
            result.append(ChatMessage(**message))
        except TypeError as error:
            raise _bad(f"messages[{index}]", "the keys of a chat message", str(error)) from None
    return result


def _bad(param: str, expected: str, found: str) -> InvalidRequest:
    return InvalidRequest(param, expected=expected, found=found, param=param)
