"""Tokenizer from a Hugging Face tokenizer.json, run by the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rase.errors import TokenizerError
from rase.text.added import AddedToken
from rase.text.core import Encode, TokenizerCore, end_ids_by_name
from rase.text.library import call, encoder
from rase.text.reach import Reach
from rase.text.vocabulary import (
    TokenKind,
    Vocabulary,
    byte_alphabet,
    byte_level_piece,
    fallback_byte,
    spells_every_byte,
)

__all__ = ["core_from_json"]


def core_from_json(data: bytes) -> TokenizerCore:
    """Build from the bytes of a tokenizer.json.

    The library encodes; added tokens are found by rase, so that text can be kept from becoming one.
    Raises ``TokenizerError`` for a file that the library refuses or a decoder that is not supported.
    """
    from tokenizers import Tokenizer

    full = call(
        "this is not a tokenizer.json that the tokenizers library reads",
        lambda: Tokenizer.from_str(data.decode("utf-8")),
    )
    full.no_padding()  # settings of whoever made the file, which change no token of a text
    full.no_truncation()
    added = full.get_added_tokens_decoder()
    ids = full.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if size > 2 * len(ids) + 65_536:  # real files have few holes; a single wild id must not cost memory
        raise TokenizerError(
            "the ids of this tokenizer.json have holes", expected=f"about {len(ids)}", found=size
        )
    names, kinds = [""] * size, bytearray(size)
    piece_of, strip_blank = _decoder(full)
    pieces = [b""] * size
    for name, token in ids.items():
        names[token], kinds[token] = name, TokenKind.NORMAL
        pieces[token] = piece_of(name)
    tokens = []
    for token, entry in added.items():
        kind = TokenKind.CONTROL if entry.special else TokenKind.USER_DEFINED
        names[token], kinds[token], pieces[token] = entry.content, kind, entry.content.encode("utf-8")
        tokens.append(AddedToken(entry.content, token, kind, entry.lstrip, entry.rstrip, entry.single_word))
    vocabulary = Vocabulary(names, pieces, bytes(kinds), ids)
    first, later = _plain_encoders(full)
    prefix, suffix = _special_ids(full)
    ends = end_ids_by_name(vocabulary) | set(suffix[-1:])
    return TokenizerCore(
        encode_first=first,
        encode_later=later,
        vocabulary=vocabulary,
        added=tuple(tokens),
        bos_id=prefix[0] if prefix else None,
        eos_id=suffix[-1] if suffix else None,
        add_bos=bool(prefix),
        add_eos=bool(suffix),
        end_ids=frozenset(ends),
        strip_blank=strip_blank,
        reach=_reach(full, vocabulary, tokens),
    )


def _reach(full: Any, vocabulary: Vocabulary, added: list[AddedToken]) -> Reach | None:
    """How far one token reaches; None unless every step of the pipeline is known to lose no text."""
    before, cuts = _steps(full.normalizer, "normalizers"), _steps(full.pre_tokenizer, "pretokenizers")
    byte_level = any(step["type"] == "ByteLevel" for step in cuts)
    model = full.model
    if byte_level:
        complete = byte_alphabet().keys() <= full.get_vocab(with_added_tokens=False).keys()
    else:
        complete = getattr(model, "byte_fallback", False) and spells_every_byte(vocabulary.ids)
    if type(model).__name__ != "BPE" or not complete or not all(_keeps_text(step) for step in before + cuts):
        return None
    return Reach(
        vocabulary.pieces if byte_level else vocabulary.spellings(),
        nfc=any(step["type"] == "NFC" for step in before),
        strips=any(token.lstrip or token.rstrip for token in added),
    )


def _steps(part: Any, name: str) -> list[Any]:
    """The steps of a normalizer or pre-tokenizer, sequences unfolded."""
    open_steps, steps = [_state(part)], []
    while open_steps:
        step = open_steps.pop(0)
        if step is not None and step["type"] == "Sequence":
            open_steps = [*step[name], *open_steps]
        elif step is not None:
            steps.append(step)
    return steps


def _keeps_text(step: Any) -> bool:
    """Whether a step is one that neither drops text nor shortens it (NFC is reckoned with)."""
    match step:
        case {"type": "NFC" | "Prepend" | "ByteLevel" | "Digits" | "Metaspace"}:
            return True
        case {"type": "Replace", "pattern": {"String": " "}, "content": content}:
            return len(content) > 0
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
    return False


def _plain_encoders(full: Any) -> tuple[Encode, Encode]:
    """Encoders with the model of ``full`` but no added tokens: for the first run and for later ones."""
    from tokenizers import Tokenizer

    def plain(pre_tokenizer: Any) -> Encode:
        tokenizer = Tokenizer(full.model)
        if full.normalizer is not None:
            tokenizer.normalizer = full.normalizer
        if pre_tokenizer is not None:
            tokenizer.pre_tokenizer = pre_tokenizer
        return encoder(tokenizer)

    pre_tokenizer = full.pre_tokenizer
    first = plain(pre_tokenizer)
    state = _state(pre_tokenizer)
    if '"prepend_scheme": "first"' not in json.dumps(state):
        return first, first
    # Metaspace "first" prefixes a blank only at the start of the prompt, which a later run is not.
    minimal = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"},
    }
    never = json.loads(json.dumps(state).replace('"prepend_scheme": "first"', '"prepend_scheme": "never"'))
    return first, plain(Tokenizer.from_str(json.dumps({**minimal, "pre_tokenizer": never})).pre_tokenizer)


def _special_ids(full: Any) -> tuple[list[int], list[int]]:
    """The ids that the file's post-processor puts before and after a text."""
    bare, whole = call(
        "this tokenizer.json cannot encode",
        lambda: [full.encode("a", add_special_tokens=special).ids for special in (False, True)],
    )
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return [], []


def _decoder(full: Any) -> tuple[Callable[[str], bytes], bool]:
    """How this file turns a token's spelling into bytes, and whether it drops the first blank of a text."""
    state = _state(full.decoder)
    steps = state["decoders"] if state and state["type"] == "Sequence" else [state]
    replaces: list[tuple[str, str]] = []
    byte_level = byte_fallback = strip = False
    inside: str | None = None
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replaces.append((old, new))
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strip = True
            case {"type": "WordPiece", "prefix": str(prefix)}:
                inside, strip = prefix, True
            case {"type": "Metaspace", "replacement": old}:
                replaces.append((old, " "))
                strip = strip or step.get("prepend_scheme", "always") != "never"
            case _:
                raise TokenizerError(
                    "the decoder of this tokenizer.json is not supported",
                    expected="ByteLevel, Metaspace, WordPiece, or Replace, ByteFallback, Fuse and Strip",
                    found=_short(step),
                )

    def piece(name: str) -> bytes:
        if byte_level:
            return byte_level_piece(name)
        if inside is not None:
            name = name.removeprefix(inside) if name.startswith(inside) else f" {name}"
        if byte_fallback and (byte := fallback_byte(name)) is not None:
            return bytes([byte])
        for old, new in replaces:
            name = name.replace(old, new)
        return name.encode("utf-8", "replace")

    return piece, strip


def _state(part: Any) -> Any:
    """The JSON form of a part of a `tokenizers` pipeline (None for none)."""
    return None if part is None else json.loads(part.__getstate__())


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "…"
