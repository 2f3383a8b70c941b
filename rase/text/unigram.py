"""Unigram language model from a GGUF vocabulary (`tokenizer.ggml.model` = t5): SentencePiece's other kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rase.errors import TokenizerError
from rase.text.charsmap import Charsmap
from rase.text.core import (
    Encode,
    TokenizerCore,
    core_from_parts,
    first_ids,
    metadata_flag,
    metadata_id,
    metadata_scores,
    metadata_strings,
    token_kinds,
)
from rase.text.library import call, encoder
from rase.text.vocabulary import BLANK, TokenKind, Vocabulary, sentencepiece_pieces, spells_every_byte

__all__ = ["core_from_unigram"]

_MAX_CHARSMAP = 2**24  # bytes; nmt_nfkc has a quarter of a million


def core_from_unigram(metadata: Mapping[str, Any]) -> TokenizerCore:
    """Build the tokenizer of a unigram file: the cut of a text with the best sum of scores.

    Kudo, "Subword Regularization", 2018. Text is normalised by the file's own table first, runs of blanks
    become one, and a blank comes before the first word, each as the file says. A character that no token
    spells is unknown, and runs of them are one token, as in SentencePiece.
    Raises ``TokenizerError`` when tokens, scores, kinds and table do not fit together.
    """
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import Unigram

    names = metadata_strings(metadata, "tokens")
    scores = metadata_scores(metadata, len(names))
    defaults = {"unknown_token_id": names.index("<unk>") if "<unk>" in names else None}
    unknown = metadata_id(metadata, "unknown_token_id", len(names))
    unknown = defaults["unknown_token_id"] if unknown is None else unknown
    if unknown is None:
        raise TokenizerError("this unigram vocabulary has no unknown token", expected="'<unk>'")
    kinds = token_kinds(metadata, names)
    kinds[unknown] = TokenKind.UNKNOWN
    ids = first_ids(names)
    # The library numbers pieces by their place in its list, and what is no piece must not be found in text.
    usable = [
        token for name, token in ids.items()
        if name and (kinds[token] in (TokenKind.NORMAL, TokenKind.BYTE) or token == unknown)
    ]  # fmt: skip
    lowest = min((scores[token] for token in usable if kinds[token] == TokenKind.NORMAL), default=0.0)
    pieces = [
        (names[token], float(scores[token] if kinds[token] == TokenKind.NORMAL else lowest))
        for token in usable
    ]
    byte_tokens = {name for name, token in ids.items() if kinds[token] == TokenKind.BYTE}
    fallback = spells_every_byte(byte_tokens)
    tokenizer = call(
        "these pieces and scores do not work",
        lambda: Tokenizer(Unigram(pieces, usable.index(unknown), fallback)),
    )
    prefix = metadata_flag(metadata, "add_space_prefix", True)
    steps: list[Any] = []
    if metadata_flag(metadata, "remove_extra_whitespaces", True):
        for runs, kept in ((" {2,}", " "), (r"\A ", ""), (rf"[ {BLANK}]+\z", "")):
            steps.append(normalizers.Replace(Regex(runs), kept))
    steps += [normalizers.Prepend(BLANK)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", BLANK)])
    crossing = any(BLANK in names[token][1:] for token in usable)  # pieces of several words
    cuts: list[Any] = [] if crossing else [pre_tokenizers.Split(BLANK, "merged_with_next")]
    if fallback:  # the library would find the token of a byte by its spelling, too
        cuts.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "isolated"))
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    vocabulary = Vocabulary(names, sentencepiece_pieces(names, kinds), bytes(kinds), ids)
    return core_from_parts(
        metadata,
        vocabulary,
        _charsmap(metadata, _numbered(encoder(tokenizer), usable)),
        default_add_bos=False,
        default_add_eos=True,
        strip_blank=prefix,
        reach=None,
        defaults=defaults,
    )


def _numbered(encode: Encode, usable: list[int]) -> Encode:
    return lambda text: [usable[place] for place in encode(text)]


def _charsmap(metadata: Mapping[str, Any], encode: Encode) -> Encode:
    """Encoding behind the file's own table, where it has one."""
    table = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if table is None:
        return encode
    charsmap = Charsmap(_bytes_of(table))
    return lambda text: encode(charsmap.normalize(text))


def _bytes_of(table: Any) -> bytes:
    numbers = table.tolist() if hasattr(table, "tolist") else table
    if (
        not isinstance(numbers, list)
        or not 4 < len(numbers) <= _MAX_CHARSMAP
        or not all(isinstance(number, int) and -128 <= number < 256 for number in numbers)
    ):
        raise TokenizerError("tokenizer.ggml.precompiled_charsmap", expected="an array of bytes")
    return bytes(number & 0xFF for number in numbers)
