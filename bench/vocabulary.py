"""Vocabularies of synthetic models: the real one of Qwen3, or byte-level BPE tokens made up to any size."""

from __future__ import annotations

import itertools
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rase.text.vocabulary import TokenKind, byte_alphabet

__all__ = ["Vocabulary", "generated", "real"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a byte-level BPE tokenizer."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    template: str

    def write(self, writer: Any) -> None:
        """Add the keys to a ``gguf.GGUFWriter``."""
        end = self.tokens.index("<|im_end|>")
        text = self.tokens.index("<|endoftext|>")
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_bos_token_id(text)
        writer.add_eos_token_id(end)
        writer.add_pad_token_id(text)
        writer.add_add_bos_token(False)
        writer.add_chat_template(self.template)


def generated(size: int) -> Vocabulary:
    """Every byte, pairs and triples of bytes up to ``size`` less the control tokens, with their merges."""
    letters = list(byte_alphabet())

    def longer() -> Iterator[tuple[str, str]]:
        pairs = list(itertools.product(letters, letters))
        yield from pairs
        yield from ((a + b, c) for a, b in pairs for c in letters)

    merges = list(itertools.islice(longer(), size - len(letters) - len(CONTROL)))
    tokens = [*letters, *(a + b for a, b in merges), *CONTROL]
    types = [TokenKind.NORMAL] * (size - len(CONTROL)) + [TokenKind.CONTROL] * len(CONTROL)
    return Vocabulary(tokens, types, [f"{a} {b}" for a, b in merges], CHATML)


def real(folder: Path, size: int) -> Vocabulary:
    """The vocabulary of ``tokenizer.json`` (or ``tokenizer.json.xz``) in ``folder``, padded to ``size``."""
    plain = folder / "tokenizer.json"
    data = (
        plain.read_bytes() if plain.exists() else lzma.decompress((folder / "tokenizer.json.xz").read_bytes())
    )
    tokenizer = json.loads(data)
    template = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    tokens, types = [f"[PAD{i}]" for i in range(size)], [TokenKind.UNUSED] * size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = token, TokenKind.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenKind.CONTROL if added["special"] else TokenKind.USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    return Vocabulary(tokens, types, merges, template)
