"""Byte-level BPE from a GGUF vocabulary (`tokenizer.ggml.model` = gpt2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rase.errors import TokenizerError
from rase.text import pretokenizers
from rase.text.core import (
    TokenizerCore,
    core_from_parts,
    first_ids,
    metadata_strings,
    token_kinds,
)
from rase.text.library import call, encoder
from rase.text.reach import Reach
from rase.text.vocabulary import TokenKind, Vocabulary, byte_alphabet, byte_level_piece

__all__ = ["core_from_bpe"]


def core_from_bpe(metadata: Mapping[str, Any]) -> TokenizerCore:
    """Build the tokenizer of a byte-level BPE file.

    Raises ``TokenizerError`` for an unknown pre-tokenizer and for merges that the vocabulary does not hold.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    row = pretokenizers.lookup(metadata.get("tokenizer.ggml.pre"))
    names = metadata_strings(metadata, "tokens")
    kinds = token_kinds(metadata, names)
    ids = first_ids(names)
    literal = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED, TokenKind.UNUSED)
    pieces = [
        name.encode("utf-8", "replace") if kind in literal else byte_level_piece(name)
        for name, kind in zip(names, kinds, strict=True)
    ]
    vocabulary = Vocabulary(names, pieces, bytes(kinds), ids)
    # Only normal tokens (and runs of blanks) can come out of plain text: merges never build an added token.
    plain = {
        name: token
        for name, token in ids.items()
        if (name and kinds[token] == TokenKind.NORMAL)
        or (kinds[token] == TokenKind.USER_DEFINED and name.isspace())
    }
    merges = _merges(metadata_strings(metadata, "merges"), ids, plain)
    model = call("these merges do not work", lambda: BPE(plain, merges, ignore_merges=row.ignore_merges))
    tokenizer = Tokenizer(model)
    if (normalizer := row.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = row.pre_tokenizer()
    return core_from_parts(
        metadata,
        vocabulary,
        encoder(tokenizer),
        default_add_bos=row.add_bos,
        default_add_sep=row.add_sep,
        strip_blank=False,
        reach=Reach(pieces, nfc=row.nfc) if byte_alphabet().keys() <= plain.keys() else None,
        defaults={},
    )


def _merges(lines: list[str], ids: Mapping[str, int], plain: Mapping[str, int]) -> list[tuple[str, str]]:
    """The file's merges ("left right") in order, without those that would build or use an added token."""
    merges = []
    for rank, line in enumerate(lines):
        left, blank, right = line.partition(" ")
        if not left:  # its first character is that blank itself
            left, blank, right = line[1:].partition(" ")
            left = line[:1] + left
        if left in plain and right in plain and left + right in plain and blank:
            merges.append((left, right))
        elif not blank or left not in ids or right not in ids or left + right not in ids:
            raise TokenizerError(
                f"merge {rank} of this file does not join two tokens of its vocabulary to a third",
                found=repr(line)[:80],
                hint="Attach the model's own tokenizer.json.",
            )
    return merges
