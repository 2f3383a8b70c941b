"""ChatTemplate: from messages to the prompt a model was trained on, text kept apart from markup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rase.errors import InvalidRequest
from rase.text.messages import ChatMessage, parse_messages
from rase.text.segments import Segment, join_segments
from rase.text.templates import ARCHITECTURE_DEFAULTS, BUILTIN

__all__ = ["ChatMessage", "ChatTemplate", "Segment", "parse_messages"]

_Render = Callable[[Sequence[ChatMessage], bool, Mapping[str, Any]], list[Segment]]


class ChatTemplate:
    """Renders messages; immutable, and safe to share between threads.

    ``name``: ``chatml``, ``llama3``, ``mistral``, or ``gguf`` for a model file's own template.

    A final assistant message is a closed turn like any other: with ``add_generation_prompt`` a fresh
    assistant header follows it. It is never a prefix that the model continues.
    """

    def __init__(self, name: str, render: _Render, source: str | None = None) -> None:
        self.name, self.source = name, source
        self._render = render

    @classmethod
    def named(cls, name: str) -> ChatTemplate:
        """Return a built-in template. Raises ``InvalidRequest`` for another name."""
        renderer = BUILTIN.get(name)
        if renderer is None:
            raise InvalidRequest(
                "unknown chat template",
                param="chat_template",
                expected="one of " + ", ".join(BUILTIN),
                found=repr(name),
            )

        def render(
            messages: Sequence[ChatMessage], prompt: bool, options: Mapping[str, Any]
        ) -> list[Segment]:
            for option, value in options.items():
                if value is not None:
                    raise InvalidRequest(
                        f"the built-in chat template {name} has no options",
                        param=f"chat_template_kwargs.{option}",
                    )
            return join_segments(renderer(messages, prompt))

        return cls(name, render)

    @classmethod
    def from_source(cls, source: str, bos: str | None = None, eos: str | None = None) -> ChatTemplate:
        """Return a template of Jinja text, run in the sandbox; ``bos`` and ``eos`` spell those tokens.

        The text is compiled on first use. Rendering raises ``ChatTemplateError`` when the text is not a
        template, refuses the messages, does something unsafe or asks for too much time or memory.
        """

        def render(
            messages: Sequence[ChatMessage], prompt: bool, options: Mapping[str, Any]
        ) -> list[Segment]:
            from rase.text.jinja import render_source

            return render_source(source, messages, prompt, bos=bos or "", eos=eos or "", options=options)

        return cls("gguf", render, source)

    @classmethod
    def for_architecture(cls, name: str) -> ChatTemplate | None:
        """The default of an architecture or alias (``llama3``, ``qwen3``, ``mistral`` …), or None."""
        default = ARCHITECTURE_DEFAULTS.get(name)
        return cls.named(default) if default else None

    def render(
        self, messages: Sequence[ChatMessage], /, add_generation_prompt: bool = True, **options: Any
    ) -> str:
        """The prompt as one string. See ``render_segments``; the string no longer says what is data."""
        segments = self.render_segments(messages, add_generation_prompt, **options)
        return "".join(segment.text for segment in segments)

    def render_segments(
        self, messages: Sequence[ChatMessage], /, add_generation_prompt: bool = True, **options: Any
    ) -> list[Segment]:
        """The prompt as segments for ``LocalTokenizer.encode_segments``.

        ``options`` are variables for the model's own template (``tools``, ``enable_thinking``; None counts as
        absent); built-in templates have none. Raises ``InvalidRequest`` for messages or options that are not
        valid, and ``ChatTemplateError``.
        """
        if not isinstance(add_generation_prompt, bool):
            raise InvalidRequest(
                "add_generation_prompt must be true or false",
                param="chat_template_kwargs.add_generation_prompt",
                found=type(add_generation_prompt).__name__,
            )
        return self._render(parse_messages(list(messages)), add_generation_prompt, options)
