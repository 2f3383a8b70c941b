"""WordPiece from a GGUF vocabulary (`tokenizer.ggml.model` = bert), for the encoders that make embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rase.errors import TokenizerError
from rase.text.core import (
    TokenizerCore,
    core_from_parts,
    first_ids,
    metadata_flag,
    metadata_id,
    metadata_strings,
    separator_id,
    token_kinds,
)
from rase.text.library import encoder
from rase.text.vocabulary import BLANK, TokenKind, Vocabulary

__all__ = ["core_from_wordpiece"]

_INSIDE = "##"  # how vocab.txt marks the inside of a word; files mark the start, with a blank
_LONGEST_WORD = 100  # characters; a longer word is unknown (BERT's own tokenizer)


def core_from_wordpiece(metadata: Mapping[str, Any]) -> TokenizerCore:
    """Build the tokenizer of a WordPiece file (Devlin et al., arXiv 1810.04805; Schuster and Nakajima 2012).

    Converters write the pieces that start a word with a blank (U+2581) before them and the others bare; a
    file that kept the ``##`` of vocab.txt is read as it is. Text is put between [CLS] and [SEP].
    Raises ``TokenizerError`` when the vocabulary lacks one of its special tokens.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordPiece

    names = metadata_strings(metadata, "tokens")
    usual = {"unknown_token_id": "[UNK]", "bos_token_id": "[CLS]", "seperator_token_id": "[SEP]"}
    given = {key: metadata_id(metadata, key, len(names)) for key in ("unknown_token_id", "cls_token_id")}
    ids: dict[str, int | None] = {
        key: names.index(name) if name in names else None for key, name in usual.items()
    }
    ids["unknown_token_id"] = _or(given["unknown_token_id"], ids["unknown_token_id"])
    ids["bos_token_id"] = _or(metadata_id(metadata, "bos_token_id", len(names)),
                              _or(given["cls_token_id"], ids["bos_token_id"]))  # fmt: skip
    ids["seperator_token_id"] = _or(separator_id(metadata, len(names)), ids["seperator_token_id"])
    unknown, first, last = ids["unknown_token_id"], ids["bos_token_id"], ids["seperator_token_id"]
    if unknown is None or first is None or last is None:
        raise TokenizerError(
            "this WordPiece vocabulary lacks a special token",
            expected=", ".join(usual.values()),
            found="no " + ", ".join(usual[key] for key, token in ids.items() if token is None),
        )
    kinds = token_kinds(metadata, names, ids.values())
    marked = any(name.startswith(BLANK) for name in names)
    spelled = [_spelling(name, kind, marked) for name, kind in zip(names, kinds, strict=True)]
    plain = {
        name: token
        for name, token in first_ids(spelled).items()
        if name and (kinds[token] == TokenKind.NORMAL or token == unknown)
    }
    tokenizer = Tokenizer(
        WordPiece(plain, unk_token=spelled[unknown], max_input_chars_per_word=_LONGEST_WORD)
    )
    lowercase = metadata_flag(metadata, "normalizer.lowercase", not _cased(names, kinds))
    accents = metadata_flag(metadata, "normalizer.strip_accents", lowercase)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces = [_piece(name, kind) for name, kind in zip(spelled, kinds, strict=True)]
    core = core_from_parts(
        metadata,
        Vocabulary(names, pieces, bytes(kinds), first_ids(names)),
        encoder(tokenizer),
        default_add_bos=True,
        strip_blank=True,
        reach=None,
        defaults=ids,
    )
    closes = metadata_flag(metadata, "add_sep_token", True)
    return replace(core, bos_id=first, eos_id=last, add_eos=closes)


def _or(given: int | None, usual: int | None) -> int | None:
    return usual if given is None else given


def _cased(names: list[str], kinds: bytearray) -> bool:
    """Whether the vocabulary spells capitals: then text is not made small before it is looked up."""
    return any(
        kind == TokenKind.NORMAL and any("A" <= character <= "Z" for character in name)
        for name, kind in zip(names, kinds, strict=True)
        if not (name.startswith("[") and name.endswith("]"))  # [unused1]
    )


def _spelling(name: str, kind: int, marked: bool) -> str:
    """A piece as vocab.txt spells it: ``##`` before what continues a word."""
    if not marked or kind != TokenKind.NORMAL or (name.startswith("[") and name.endswith("]")):
        return name
    return name[1:] if name.startswith(BLANK) else _INSIDE + name


def _piece(spelling: str, kind: int) -> bytes:
    if kind != TokenKind.NORMAL:
        return spelling.encode("utf-8", "replace")
    text = spelling.removeprefix(_INSIDE) if spelling.startswith(_INSIDE) else " " + spelling
    return text.encode("utf-8", "replace")
