"""Running a model file's own Jinja template on messages, and what comes out as segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError, UndefinedError

from rase.errors import ChatTemplateError, InvalidRequest
from rase.text.budget import MAX_OUTPUT, Budget, OverBudget, spending
from rase.text.messages import ChatMessage
from rase.text.provenance import Mixed, joined, segments_of
from rase.text.sandbox import environment
from rase.text.segments import Segment

__all__ = ["render_source"]

MAX_SOURCE = 512 * 1024  # characters; the longest public template has about 20,000
_RESERVED = frozenset({"self", "messages", "add_generation_prompt", "bos_token", "eos_token"})


def render_source(
    source: str,
    messages: Sequence[ChatMessage],
    add_generation_prompt: bool,
    *,
    bos: str,
    eos: str,
    options: Mapping[str, Any],
) -> list[Segment]:
    """Render ``source``. Strings of the template, roles, ``bos`` and ``eos`` are markup, answers are
    assistant text, and everything else is text. Raises ``ChatTemplateError`` and ``InvalidRequest``."""
    for name in options:
        if name in _RESERVED or name.startswith("_"):
            raise InvalidRequest(
                "this name belongs to the chat template", param=f"chat_template_kwargs.{name}"
            )
    variables = {key: value for key, value in options.items() if value is not None}
    try:
        with spending(Budget()) as budget:
            template = _compiled(source)
            context = template.new_context(
                {
                    **_plain(variables),
                    "messages": [_message(message) for message in messages],
                    "add_generation_prompt": add_generation_prompt,
                    "bos_token": Mixed(bos, "markup"),
                    "eos_token": Mixed(eos, "markup"),
                }
            )
            pieces: list[str] = []
            length = 0
            for piece in template.root_render_func(context):
                length += len(piece)
                budget.text(len(piece))
                if length > MAX_OUTPUT:
                    raise OverBudget(f"a prompt of more than {MAX_OUTPUT:,} characters")
                pieces.append(piece)
            return segments_of(joined(pieces))
    except InvalidRequest:
        raise
    except OverBudget as error:
        raise ChatTemplateError("the model's chat template asks for too much", found=str(error)) from None
    except SecurityError as error:
        raise ChatTemplateError("the model's chat template is not safe", found=_short(error)) from None
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the model's chat template is not valid (line {error.lineno})",
            found=_short(error.message),
            hint=_HINT,
        ) from None
    except UndefinedError as error:
        raise ChatTemplateError(
            "the model's chat template misses a value", found=_short(error), hint=_HINT
        ) from None
    except TemplateError as error:
        raise ChatTemplateError(
            "the model's chat template refuses these messages", found=_short(error)
        ) from None
    except Exception as error:  # a template is a program: any operation in it may fail in its own way
        raise ChatTemplateError(
            "the model's chat template failed", found=f"{type(error).__name__}: {_short(error)}", hint=_HINT
        ) from None


_HINT = "Register the model with --chat-template chatml, llama3 or mistral if one of these fits."


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    if len(source) > MAX_SOURCE:
        raise OverBudget(f"a template of more than {MAX_SOURCE:,} characters")
    return environment().from_string(source)


def _message(message: ChatMessage) -> dict[str, Any]:
    fields: dict[str, Any] = _plain(message.as_dict())
    # One of four words, which some templates build control tokens from.
    fields["role"] = Mixed(message.role, "markup")
    if message.role == "assistant":
        fields["content"] = Mixed(message.content, "assistant")
    if message.reasoning_content is not None:
        # Templates use three names for it.
        for key in ("reasoning_content", "reasoning", "thinking"):
            fields[key] = Mixed(message.reasoning_content, "assistant")
    return fields


def _plain(value: Any) -> Any:
    """A copy of JSON-like data in plain types: a template must not meet anything that has code behind it."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {
            str.__str__(key) if isinstance(key, str) else _no(key): _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _no(value)


def _no(value: object) -> Any:
    raise InvalidRequest(
        "a chat template takes JSON values only", param="chat_template_kwargs", found=type(value).__name__
    )


def _short(value: object) -> str:
    text = str.__str__(str(value))
    return text if len(text) <= 300 else text[:300] + "…"
