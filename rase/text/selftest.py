"""A self-test of a model's tokenizer: what a file gets wrong is said when the file is registered.

What cannot give right tokens is refused by whoever builds the tokenizer. What is found here is a file's own
fault that the model survives: text it loses, an answer that cannot end, markup that is no token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rase.errors import EngineError, TokenizerError
from rase.text.chat import ChatTemplate
from rase.text.messages import ChatMessage
from rase.text.tokenizer import LocalTokenizer

__all__ = ["problems_of"]

SAMPLES = (
    "Hello, world! It's 1234567.", "  two  blanks,\n\n\ttabs and \r\n lines  ",
    "Größe, naïve, Ελλάδα, Привет",
    "안녕하세요 世界 ๕ नमस्ते", "😸👨‍👩‍👧 € ½ ﷽", 'def f(x):\n    return {"a": [x**2]}  # <b>',
)  # fmt: skip
_MARKUP = re.compile(r"<\|[A-Za-z0-9_]{1,40}\|>|<[a-z]+_of_[a-z]+>|\[/?(?:INST|SYSTEM_PROMPT)\]|</?s>")
_CHAT = (ChatMessage("user", "a"), ChatMessage("assistant", "b"), ChatMessage("user", "c"))


def problems_of(
    tokenizer: LocalTokenizer, template: ChatTemplate | None, metadata: Mapping[str, Any], *, embedding: bool
) -> list[str]:
    """What is wrong with a file's tokenizer, one sentence each; empty for a sound one.

    Raises ``TokenizerError`` when a special token is not what it must be: alone where markup spells it,
    absent where text does.
    """
    _check_special(tokenizer)
    names = metadata.get("tokenizer.ggml.tokens")
    found = []
    if isinstance(names, list) and (twice := len(names) - len(set(names))):
        found.append(
            f"{twice} tokens of the vocabulary have a spelling that an earlier one has: they are never made"
        )
    if embedding:
        ids = tokenizer.encode("a", parse_special=False)
        if tokenizer.add_bos and ids[:2].count(ids[0]) != 1:
            raise TokenizerError("the token before a text comes twice", found=str(ids[:4]))
        return found
    if lost := [text for text in SAMPLES if _round_trip(tokenizer, text) != text]:
        changed = _first_change(lost[0], _round_trip(tokenizer, lost[0]))
        found.append(f"the vocabulary does not keep every text: {changed}")
    if not tokenizer.end_ids:
        found.append("no token ends an answer: every answer runs until max_tokens")
    return found + (_template_problems(tokenizer, template) if template is not None else [])


def _check_special(tokenizer: LocalTokenizer) -> None:
    for token in {tokenizer.bos_id, tokenizer.eos_id, *tokenizer.end_ids}:
        if token is None:
            continue
        name = tokenizer.name_of(token)
        if tokenizer.encode(name, False) != [token] or token in tokenizer.encode(name, False, False):
            raise TokenizerError(
                f"special token {token} ({name!r:.40}) cannot be told from text",
                expected=f"ids [{token}] as markup",
                found=f"{tokenizer.encode(name, False)!s:.60} as markup, "
                f"{tokenizer.encode(name, False, False)!s:.60} as text",
                hint="Attach the model's own tokenizer.json.",
            )  # fmt: skip


def _round_trip(tokenizer: LocalTokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text, False, False), skip_special_tokens=False)


def _first_change(text: str, other: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
    )
    return f"{text[at : at + 8]!r} comes back as {other[at : at + 8]!r}"


def _template_problems(tokenizer: LocalTokenizer, template: ChatTemplate) -> list[str]:
    try:
        segments = template.render_segments(_CHAT)
    except EngineError as error:
        return [f"the chat template does not render a plain chat: {error}"]
    ids = tokenizer.encode_segments(segments)
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and (ids[:1] != [bos] or ids[1:2] == [bos]):
        raise TokenizerError("a prompt must begin with one token of begin of text", found=str(ids[:4]))
    markup = "".join(segment.text for segment in segments if segment.kind == "markup")
    unknown = [
        name for name in dict.fromkeys(_MARKUP.findall(markup))
        if len(tokenizer.encode(name, False)) > 1
    ]  # fmt: skip
    return (
        [f"the chat template writes {', '.join(unknown)}, which is no token of this vocabulary"]
        if unknown
        else []
    )
