"""TokenizerCore: what every source of a tokenizer (GGUF vocabulary, tokenizer.json) is turned into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rase.errors import TokenizerError
from rase.text.added import AddedToken
from rase.text.reach import Reach
from rase.text.vocabulary import TokenKind, Vocabulary

__all__ = ["TokenizerCore", "end_ids_by_name", "metadata_flag", "metadata_id"]

Encode = Callable[[str], list[int]]

# Tokens that end an answer, whatever the file says about them. Those in angle brackets with bars cannot be
# anything else; the others count only as control tokens (Gemma has an HTML `</s>` that is none).
_END_ALWAYS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|return|>",
    "<|call|>", "<end_of_turn>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
_END_AS_CONTROL = ("</s>", "<eos>", "<EOT>", "[EOT]", "[EOS]", "<turn|>", "<end_of_utterance>")


@dataclass(frozen=True, slots=True)
class TokenizerCore:
    """The parts of a tokenizer. ``encode_first`` and ``encode_later`` know no added tokens: they encode a run
    of text at the start of a prompt and after an added token (which may differ in a prefix blank)."""

    encode_first: Encode
    encode_later: Encode
    vocabulary: Vocabulary
    added: tuple[AddedToken, ...]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    end_ids: frozenset[int]
    strip_blank: bool  # the first blank of a text is the tokenizer's own, not the model's
    reach: Reach | None = None  # None: text may be lost on the way, so nothing is known before encoding


def end_ids_by_name(vocabulary: Vocabulary) -> set[int]:
    """The ids of well-known end-of-turn tokens in ``vocabulary``."""
    ids = vocabulary.ids
    ends = {
        ids[name]
        for name in _END_ALWAYS
        if name in ids and vocabulary.kinds[ids[name]] in (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    }
    ends |= {ids[name] for name in _END_AS_CONTROL if name in ids and vocabulary.is_control(ids[name])}
    # In the harmony format <|end|> closes one message of an answer, and <|return|> or <|call|> the answer.
    if {"<|return|>", "<|call|>", "<|end|>"} <= ids.keys():
        ends.discard(ids["<|end|>"])
    return ends


def metadata_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    """The id under ``tokenizer.ggml.<name>``, or None; raises ``TokenizerError`` outside the vocabulary."""
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if value is None:
        return None
    number = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if number == 0xFFFFFFFF:  # -1 in a uint32: how converters write "none"
        return None
    if not 0 <= number < size:
        raise TokenizerError(f"{key} names no token", expected=f"an id below {size}", found=repr(value)[:80])
    return number


def separator_id(metadata: Mapping[str, Any], size: int) -> int | None:
    """The id of the token that separates texts, under the key as converters spell it."""
    found = metadata_id(metadata, "seperator_token_id", size)
    return metadata_id(metadata, "separator_token_id", size) if found is None else found


def metadata_flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """The flag under ``tokenizer.ggml.<name>``; raises ``TokenizerError`` when it is not a boolean."""
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise TokenizerError(f"{key} is not a flag", expected="true or false", found=repr(value)[:80])
    return value


def metadata_strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    """The strings under ``tokenizer.ggml.<name>``; raises ``TokenizerError`` when there are none."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise TokenizerError(
            f"the file has no tokenizer.ggml.{name}",
            expected="an array of strings",
            found=type(value).__name__,
            hint="Attach the model's own tokenizer.json.",
        )
    return value


def metadata_scores(metadata: Mapping[str, Any], size: int) -> list[float]:
    """``tokenizer.ggml.scores``, one per token; raises ``TokenizerError`` when there are none."""
    scores = metadata_numbers(metadata, "scores", size)
    if scores is None:
        raise TokenizerError(
            f"a vocabulary of kind {metadata.get('tokenizer.ggml.model')!r:.40} without tokenizer.ggml.scores"
        )
    return scores


def metadata_numbers(metadata: Mapping[str, Any], name: str, size: int) -> list[Any] | None:
    """The numbers under ``tokenizer.ggml.<name>``, one per token, or None when the key is absent."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    numbers = value.tolist() if hasattr(value, "tolist") else value
    if (
        not isinstance(numbers, list)
        or len(numbers) < size
        or not all(isinstance(number, (int, float)) for number in numbers)
    ):
        raise TokenizerError(
            f"tokenizer.ggml.{name} does not cover the vocabulary",
            expected=f"{size} numbers",
            found=len(numbers) if isinstance(numbers, list) else type(value).__name__,
        )
    return numbers[:size]


def token_kinds(
    metadata: Mapping[str, Any], names: list[str], special: Iterable[int | None] = ()
) -> bytearray:
    """The kind of every token by ``tokenizer.ggml.token_type``.

    The ids that the metadata name (BOS, EOS and the like) and those of ``special`` are control tokens even
    where an old converter marked them otherwise. Kinds that the specification does not know count as normal.
    """
    own = [metadata_id(metadata, name, len(names)) for name in SPECIAL_IDS]
    numbers = metadata_numbers(metadata, "token_type", len(names))
    known = {int(kind) for kind in TokenKind if kind != TokenKind.ABSENT}
    if numbers is None:
        kinds = bytearray([TokenKind.NORMAL]) * len(names)
    else:
        kinds = bytearray(number if number in known else TokenKind.NORMAL for number in numbers)
    for token in (*own, *special):
        if token is not None and kinds[token] != TokenKind.UNKNOWN:
            kinds[token] = TokenKind.CONTROL
    return kinds


def first_ids(names: list[str]) -> dict[str, int]:
    """Spelling to id; of a spelling that occurs twice the first id counts."""
    ids: dict[str, int] = {}
    for token, name in enumerate(names):
        ids.setdefault(name, token)
    return ids


def added_tokens(vocabulary: Vocabulary) -> tuple[AddedToken, ...]:
    """The control, unknown and user-defined tokens of a GGUF vocabulary, found by their literal spelling."""
    wanted = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
    return tuple(
        AddedToken(
            name, token, TokenKind.USER_DEFINED if kind == TokenKind.USER_DEFINED else TokenKind.CONTROL
        )
        for token, (name, kind) in enumerate(zip(vocabulary.names, vocabulary.kinds, strict=True))
        if kind in wanted and vocabulary.ids.get(name) == token
    )


SPECIAL_IDS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")


def core_from_parts(
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    encode: Encode,
    *,
    default_add_bos: bool,
    default_add_eos: bool = False,
    default_add_sep: bool = False,
    strip_blank: bool,
    reach: Reach | None,
    defaults: Mapping[str, int | None],
) -> TokenizerCore:
    """Join a vocabulary and an encoder with the special ids and flags of a GGUF file."""
    size = len(vocabulary)

    def special(name: str) -> int | None:
        found = metadata_id(metadata, name, size)
        return defaults.get(name) if found is None else found

    bos, eos = special("bos_token_id"), special("eos_token_id")
    add_eos = metadata_flag(metadata, "add_eos_token", default_add_eos)
    if (
        metadata_flag(metadata, "add_sep_token", default_add_sep)
        and (sep := separator_id(metadata, size)) is not None
    ):
        eos, add_eos = sep, True  # encoders close a text with it
    declared = {token for name in SPECIAL_IDS[1:] if (token := special(name)) is not None}
    return TokenizerCore(
        encode_first=encode,
        encode_later=encode,
        vocabulary=vocabulary,
        added=added_tokens(vocabulary),
        bos_id=bos,
        eos_id=eos,
        add_bos=bos is not None and metadata_flag(metadata, "add_bos_token", default_add_bos),
        add_eos=eos is not None and add_eos,
        end_ids=frozenset(declared | end_ids_by_name(vocabulary)),
        strip_blank=strip_blank,
        reach=reach,
    )
