"""SentencePiece-style BPE from a GGUF vocabulary (`tokenizer.ggml.model` = llama), with byte fallback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rase.errors import TokenizerError
from rase.text.core import (
    TokenizerCore,
    core_from_parts,
    first_ids,
    metadata_flag,
    metadata_id,
    metadata_scores,
    metadata_strings,
    token_kinds,
)
from rase.text.library import encoder
from rase.text.reach import Reach
from rase.text.vocabulary import BLANK, TokenKind, Vocabulary, sentencepiece_pieces, spells_every_byte

__all__ = ["core_from_spm"]

MAX_WORK = 2**28  # characters copied to find the merges; the vocabulary of Gemma 3 takes a twentieth of that


def core_from_spm(metadata: Mapping[str, Any]) -> TokenizerCore:
    """Build the tokenizer of a SentencePiece-style file.

    Such files carry no merges: every way to cut a token into two tokens is one, ranked by the token's score
    (Kudo and Richardson 2018, BPE mode). A character that no token spells becomes its UTF-8 byte tokens.
    Raises ``TokenizerError`` when tokens, scores and kinds do not fit together.
    """
    from tokenizers import Tokenizer, normalizers
    from tokenizers.models import BPE

    names = metadata_strings(metadata, "tokens")
    scores = metadata_scores(metadata, len(names))
    ids = first_ids(names)
    defaults = _default_ids(metadata, names)
    kinds = token_kinds(metadata, names, defaults.values())
    vocabulary = Vocabulary(names, sentencepiece_pieces(names, kinds), bytes(kinds), ids)
    unk = metadata_id(metadata, "unknown_token_id", len(names))
    unk = defaults.get("unknown_token_id") if unk is None else unk
    normal = {name: token for name, token in ids.items() if name and kinds[token] == TokenKind.NORMAL}
    byte_tokens = {name: token for name, token in ids.items() if kinds[token] == TokenKind.BYTE}
    unknown = {names[unk]: unk} if unk is not None else {}
    tokenizer = Tokenizer(
        BPE(
            vocab={**normal, **byte_tokens, **unknown},
            merges=derive_merges(normal, scores),
            unk_token=names[unk] if unk is not None else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata_flag(metadata, "add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend(BLANK)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", BLANK)])
    return core_from_parts(
        metadata,
        vocabulary,
        encoder(tokenizer),
        default_add_bos=True,
        strip_blank=prefix,
        reach=Reach(vocabulary.spellings()) if spells_every_byte(byte_tokens) else None,
        defaults=defaults,
    )


def derive_merges(normal: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every split of a token whose halves are tokens, best score first.

    Only normal tokens take part: control, user-defined and byte tokens are never built from text. Among the
    splits of one token the one with the longer left half comes first, as SentencePiece merges leftmost first;
    equal scores keep the order of the vocabulary (Gemma's converted files rank by it alone).
    Raises ``TokenizerError`` for tokens so long that this would take minutes.
    """
    if (work := sum(len(name) ** 2 for name in normal)) > MAX_WORK:  # a token of n letters has n splits
        raise TokenizerError(
            "the tokens of this vocabulary are too long", found=work,
            expected=f"at most {MAX_WORK} as the sum of their squared lengths",
            hint="Attach the model's own tokenizer.json.",
        )  # fmt: skip
    merges: list[tuple[float, int, int, str, str]] = []
    for name, token in normal.items():
        score = -scores[token]
        for cut in range(1, len(name)):
            left = name[:cut]
            if left in normal:
                right = name[cut:]
                if right in normal:
                    merges.append((score, token, -cut, left, right))
    merges.sort()
    return [(left, right) for _, _, _, left, right in merges]


def _default_ids(metadata: Mapping[str, Any], names: list[str]) -> dict[str, int | None]:
    """SentencePiece's own ids for <unk>, <s> and </s>, for old files that do not name them."""
    usual = {"unknown_token_id": (0, "<unk>"), "bos_token_id": (1, "<s>"), "eos_token_id": (2, "</s>")}
    return {
        key: token if token < len(names) and names[token] == name else None
        for key, (token, name) in usual.items()
        if f"tokenizer.ggml.{key}" not in metadata
    }
