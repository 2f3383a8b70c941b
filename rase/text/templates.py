"""The built-in chat templates: ChatML, Llama 3 and Mistral, as pure functions from messages to segments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from rase.text.messages import ChatMessage
from rase.text.segments import Segment

__all__ = ["ARCHITECTURE_DEFAULTS", "BUILTIN", "Renderer"]

Renderer = Callable[[Sequence[ChatMessage], bool], Iterator[Segment]]

# Which built-in an architecture's models were trained with, where a file does not bring its own template.
ARCHITECTURE_DEFAULTS = {
    "qwen2": "chatml",
    "qwen3": "chatml",
    "llama3": "llama3",
    "llama": "mistral",
    "llama2": "mistral",
    "mistral": "mistral",
    "mixtral": "mistral",
}


def chatml(messages: Sequence[ChatMessage], add_generation_prompt: bool) -> Iterator[Segment]:
    """ChatML (OpenAI 2023): ``<|im_start|>role\\ncontent<|im_end|>\\n``."""
    for message in messages:
        yield _markup(f"<|im_start|>{message.role}\n")
        yield _content(message)
        yield _markup("<|im_end|>\n")
    if add_generation_prompt:
        yield _markup("<|im_start|>assistant\n")


def llama3(messages: Sequence[ChatMessage], add_generation_prompt: bool) -> Iterator[Segment]:
    """Llama 3 (Meta 2024): a header of two tokens, trimmed content, ``<|eot_id|>``; tools are ``ipython``."""
    yield _markup("<|begin_of_text|>")
    for message in messages:
        role = "ipython" if message.role == "tool" else message.role
        yield _markup(f"<|start_header_id|>{role}<|end_header_id|>\n\n")
        yield _content(message, trim=True)
        yield _markup("<|eot_id|>")
    if add_generation_prompt:
        yield _markup("<|start_header_id|>assistant<|end_header_id|>\n\n")


def mistral(messages: Sequence[ChatMessage], add_generation_prompt: bool) -> Iterator[Segment]:
    """Mistral and Llama 2 instruct: ``<s>[INST] user [/INST] answer</s>``.

    A system message goes before the next user turn's text, with an empty line between; without such a turn it
    is a turn of its own. Tool results are user turns: this markup knows no others. The prompt for the next
    answer is the closing ``[/INST]`` itself, so ``add_generation_prompt`` adds nothing.
    """
    yield _markup("<s>")
    waiting: list[ChatMessage] = []
    for message in messages:
        if message.role == "system":
            waiting.append(message)
        elif message.role == "assistant":
            yield from _instruction(waiting)
            waiting = []
            yield _markup(" ")
            yield _content(message)
            yield _markup("</s>")
        else:
            yield from _instruction([*waiting, message])
            waiting = []
    yield from _instruction(waiting)


def _instruction(messages: Sequence[ChatMessage]) -> Iterator[Segment]:
    if messages:
        yield _markup("[INST] ")
        for index, message in enumerate(messages):
            if index:
                yield _markup("\n\n")
            yield _content(message)
        yield _markup(" [/INST]")


def _markup(text: str) -> Segment:
    return Segment(text, "markup")


def _content(message: ChatMessage, trim: bool = False) -> Segment:
    """What a message says; calls to tools follow as one JSON object a line."""
    lines = [message.content] if message.content else []
    for call in message.as_dict().get("tool_calls", ()):
        function = {"name": call["function"]["name"], "arguments": call["function"].get("arguments", {})}
        lines.append(json.dumps(function, ensure_ascii=False))
    text = "\n".join(lines)
    return Segment(text.strip() if trim else text, "assistant" if message.role == "assistant" else "text")


BUILTIN: dict[str, Renderer] = {"chatml": chatml, "llama3": llama3, "mistral": mistral}
