"""A tokenizer.json as the ``tokenizer.ggml.*`` metadata of a GGUF file, where those can say the same.

They can for byte-level BPE whose way of cutting text has a name in ``rase.text.pretokenizers``. Samples are
encoded both ways before anything is written; where they differ, and for other kinds of tokenizer, the file
gets none, and the tokenizer.json has to be attached.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from rase.errors import TokenizerError
from rase.gguf.reader import GgufFile
from rase.text.pretokenizers import DIGITS, PRE_TOKENIZERS, PreTokenizer
from rase.text.tokenizer import LocalTokenizer
from rase.text.vocabulary import TokenKind

__all__ = ["embed", "has_vocabulary"]

_SAMPLES = (
    "The quick brown fox, 3.14159 and 1234567!", "  two blanks\n\n\tand tabs \r\n", "don't I'LL we've",
    "Größe naïve Ελλάδα Привет 你好世界 こんにちは مرحبا", "def f(x):\n    return x ** 2  # x²",
    "e\u0301 ½ 🙂🏽", "https://example.org/a?b=c&d=%20", "", " ", "aaaaaaaaaaaaaaaa",
)  # fmt: skip
_Table = Mapping[str, Any]


def embed(data: bytes, rows: int, values: dict[str, Any], types: dict[str, str]) -> None:
    """Add the vocabulary in ``data`` to the metadata; ``rows`` are those of the embedding matrix.

    What the folder's own keys ``tokenizer.bos_token`` and ``tokenizer.eos_token`` say, GGUF says by ids.
    Raises ``TokenizerError`` for a tokenizer.json that does not build.
    """
    for name in ("tokenizer.bos_token", "tokenizer.eos_token"):
        values.pop(name, None)
    tokenizer = LocalTokenizer.from_json(data).with_metadata(values)
    for key, kind, value in _vocabulary(json.loads(data), tokenizer, rows):
        values[f"tokenizer.ggml.{key}"], types[f"tokenizer.ggml.{key}"] = value, kind
    if "tokenizer.ggml.tokens" in values and not _same(tokenizer, values):
        for key in ("pre", "tokens", "token_type", "merges"):
            values.pop(f"tokenizer.ggml.{key}", None)
    if "tokenizer.ggml.tokens" not in values:
        values["tokenizer.ggml.model"], types["tokenizer.ggml.model"] = "none", "string"


def has_vocabulary(path: str | os.PathLike[str]) -> bool:
    """Whether the GGUF file ``path`` has a tokenizer of its own."""
    with GgufFile.open(path) as file:
        return file.metadata.get("tokenizer.ggml.model") not in (None, "none")


def _vocabulary(table: _Table, tokenizer: LocalTokenizer, rows: int) -> list[tuple[str, str, Any]]:
    """(key, type, value) of each; none for a tokenizer that GGUF has no words for."""
    model = table.get("model", {})
    pre = _pre_name(table)
    if model.get("type") != "BPE" or pre is None or model.get("byte_fallback"):
        return []
    names = {id: name for name, id in model["vocab"].items()}
    kinds = dict.fromkeys(names, int(TokenKind.NORMAL))
    for token in table.get("added_tokens", ()):
        names[token["id"]] = token["content"]
        kinds[token["id"]] = int(TokenKind.CONTROL if token.get("special") else TokenKind.USER_DEFINED)
    size = max(rows, tokenizer.vocab_size)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return [
        ("model", "string", "gpt2"), ("pre", "string", pre),
        ("tokens", "array of string", [names.get(id, f"[PAD{id}]") for id in range(size)]),
        ("token_type", "array of int32",
         np.array([kinds.get(id, int(TokenKind.UNUSED)) for id in range(size)], np.int32)),
        ("merges", "array of string", merges),
        ("add_bos_token", "bool", tokenizer.add_bos),
    ]  # fmt: skip


def _pre_name(table: _Table) -> str | None:
    """The name of the way in which the tokenizer.json cuts text, if it has one."""
    splits: list[str] = []
    gpt2 = byte_level = False
    for step in _steps(table.get("pre_tokenizer"), "pretokenizers"):
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                splits.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                splits.append(DIGITS)
            case {"type": "ByteLevel", "add_prefix_space": False}:
                byte_level, gpt2 = True, bool(step.get("use_regex", True))
            case _:
                return None
    normalizers = [step.get("type") for step in _steps(table.get("normalizer"), "normalizers")]
    if not byte_level or normalizers not in ([], ["NFC"]):
        return None
    ignore = bool(table["model"].get("ignore_merges", False))
    found = PreTokenizer(tuple(splits), gpt2, bool(normalizers), ignore)
    for name, row in PRE_TOKENIZERS.items():
        if found == PreTokenizer(row.splits, row.gpt2_split, row.nfc, row.ignore_merges):
            return name
    return None


def _steps(part: Any, name: str) -> list[Any]:
    if not part:
        return []
    return list(part[name]) if part.get("type") == "Sequence" else [part]


def _same(tokenizer: LocalTokenizer, values: Mapping[str, Any]) -> bool:
    """Whether the metadata give the ids of the tokenizer.json."""
    try:
        other = LocalTokenizer.from_gguf(values)
    except TokenizerError:
        return False
    return all(tokenizer.encode(text) == other.encode(text) for text in _SAMPLES)
