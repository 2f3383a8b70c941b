"""TOY-WORDPIECE: a small BERT tokenizer, as GGUF metadata and as a ``tokenizer.json``."""

from __future__ import annotations

import json
from typing import Any

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-'éß한"
WORDS = ["hello", "the", "##ing", "##est", "un", "##aff", "##able", "naive", "东", "京", "[unused1]"]
VOCAB = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]


def converted(name: str) -> str:
    """How converters of GGUF files write a piece of vocab.txt."""
    if name.startswith("[") and name.endswith("]"):
        return name
    return name.removeprefix("##") if name.startswith("##") else "\u2581" + name


def metadata(vocab: list[str] = VOCAB, **changes: Any) -> dict[str, Any]:
    keys = {
        "model": "bert", "pre": "default", "tokens": [converted(name) for name in vocab],
        "token_type": [3 if name in SPECIAL else 1 for name in vocab],
        "unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "mask_token_id": 4,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def source(vocab: list[str] = VOCAB, lowercase: bool = True) -> bytes:
    """The same tokenizer as a tokenizer.json, with the padding that some of them carry."""
    added = [
        {"id": place, "content": name, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for place, name in enumerate(SPECIAL)
    ]  # fmt: skip
    ends = {name: {"id": name, "ids": [vocab.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    single = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]  # fmt: skip
    return json.dumps({
        "version": "1.0", "added_tokens": added,
        "truncation": {"max_length": 16, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single,
                           "special_tokens": ends},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {name: place for place, name in enumerate(vocab)}},
    }).encode()  # fmt: skip
