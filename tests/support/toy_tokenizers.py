"""TOY-BPE and TOY-SPM: small tokenizers, each as GGUF metadata and as a ``tokenizer.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CHATML = (
    r"{% for message in messages %}"
    r"{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    r"{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {  # `tokenizer.ggml.pre`: the regular expression of its pre-tokenizer
    "llama-bpe": _LLAMA3,
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte 0 to 255 (the table of GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(plain)))
    return [letters[byte] for byte in range(256)]


_LETTERS = byte_letters()


@dataclass(frozen=True)
class ToyTokenizer:
    """One toy tokenizer. ``tokens[id]`` is a token as vocabularies write it, ``types[id]`` its GGUF type."""

    model: str  # "gpt2" (byte-level BPE) or "llama" (SentencePiece style)
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[tuple[str, str]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    bos: str | None = None
    eos: str | None = None
    eot: str | None = None
    add_bos: bool = False
    add_space_prefix: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, piece: str | int) -> int:
        """The id of a token; an id is passed on. ``ValueError`` when there is none.

        TOY-BPE: by its text ("be", " the", "<|im_end|>"); TOY-SPM: as it is written ("▁Hello", "<0x0A>").
        """
        if isinstance(piece, int):
            return piece
        if self.model == "gpt2" and piece not in self.specials():
            piece = _to_letters(piece)
        return self.tokens.index(piece)

    def byte(self, value: int) -> int:
        """The id of the token of one byte (0 to 255)."""
        return self.tokens.index(_LETTERS[value] if self.model == "gpt2" else f"<0x{value:02X}>")

    def specials(self) -> list[str]:
        """Control, unknown and user-defined tokens, in id order."""
        kinds = (UNKNOWN, CONTROL, USER_DEFINED)
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in kinds]

    @property
    def eos_id(self) -> int:
        """The id of the end token (``eos``)."""
        return self.id(self.eos or "")

    def metadata(self) -> dict[str, Any]:
        """The ``tokenizer.ggml.*`` keys, for ``write_gguf``."""
        keys: dict[str, Any] = {
            "model": self.model, "pre": self.pre, "tokens": self.tokens,
            "token_type": np.array(self.types, dtype=np.int32), "add_bos_token": self.add_bos,
            "add_space_prefix": self.add_space_prefix,
        }  # fmt: skip
        if self.model == "gpt2":
            keys["merges"] = [f"{left} {right}" for left, right in self.merges]
        else:
            keys["scores"] = np.array(self.scores, dtype=np.float32)
        for name, token in (("bos", self.bos), ("eos", self.eos), ("eot", self.eot)):
            if token is not None:
                keys[f"{name}_token_id"] = self.id(token)
        if UNKNOWN in self.types:
            keys["unknown_token_id"] = self.types.index(UNKNOWN)
        return {
            f"tokenizer.ggml.{key}": value
            for key, value in keys.items()
            if not isinstance(value, list) or value
        }

    def json(self) -> bytes:
        """The same tokenizer as a ``tokenizer.json`` of the ``tokenizers`` library."""
        return json.dumps(
            _bpe_json(self) if self.model == "gpt2" else _spm_json(self), ensure_ascii=False
        ).encode()

    def write_json(self, folder: Path, name: str = "tokenizer.json") -> Path:
        """Write ``json()`` into ``folder`` and return the path."""
        path = Path(folder) / name
        path.write_bytes(self.json())
        return path

    def with_(self, **changes: Any) -> ToyTokenizer:
        """A copy with other fields, such as ``eos="<|endoftext|>"`` or ``pre="zz-unknown"``."""
        return replace(self, **changes)


BPE_CONTROL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
)  # fmt: skip
BPE_WORDS = ("hello", " world", " the", "Hi", "user", "system", "assistant", " big", " cat", "123")


def toy_bpe(
    words: Sequence[str] = BPE_WORDS,
    pieces: Sequence[str] = (),
    *,
    control: Sequence[str] = BPE_CONTROL,
    user_defined: Sequence[str] = ("<think>", "</think>"),
    bos: str | None = "<|begin_of_text|>",
    eos: str = "<|end_of_text|>",
    eot: str | None = None,
    pre: str = "llama-bpe",
    add_bos: bool = False,
) -> ToyTokenizer:
    """TOY-BPE: id b is byte b (0 to 255), then ``control``, ``user_defined``, then words and pieces.

    Each of ``words`` has the merges that make it one token when the pre-tokenizer leaves it whole (its
    intermediate tokens are in the vocabulary, too). ``pieces`` are any texts that only a model can emit:
    tokens without merges, for CHAIN. Look ids up with ``id(text)`` and ``byte(value)``.
    """
    tokens = [*_LETTERS, *control, *user_defined]
    types = [NORMAL] * 256 + [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined)
    merges: list[tuple[str, str]] = []
    for word in words:
        parts = _merge(list(_to_letters(word)), merges)
        while len(parts) > 1:
            merges.append((parts[0], parts[1]))
            parts[:2] = [parts[0] + parts[1]]
            if parts[0] not in tokens:
                tokens.append(parts[0])
    tokens += [letters for piece in pieces if (letters := _to_letters(piece)) not in tokens]
    types += [NORMAL] * (len(tokens) - len(types))
    return ToyTokenizer("gpt2", pre, tokens, types, merges, bos=bos, eos=eos, eot=eot, add_bos=add_bos)


SPM_WORDS = ("▁Hello", "▁big", "▁world", "▁the", "▁a", "ing")


def toy_spm(
    words: Sequence[str] = SPM_WORDS,
    *,
    control: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
    eos: str = "</s>",
    eot: str | None = None,
    add_bos: bool = True,
    add_space_prefix: bool = True,
    bytes_too: bool = True,
) -> ToyTokenizer:
    """TOY-SPM: 0 <unk>, 1 <s>, 2 </s>, 3 to 258 <0x00> to <0xFF>, then ``control``, words, letters.

    Each of ``words`` (U+2581 for a blank) is reachable by merges in order of score: its prefixes and its
    letters are in the vocabulary, earlier words score higher. ``bytes_too=False`` leaves out the byte tokens.
    """
    tokens = ["<unk>", "<s>", "</s>"]
    types = [UNKNOWN, CONTROL, CONTROL]
    if bytes_too:
        tokens += [f"<0x{value:02X}>" for value in range(256)]
        types += [BYTE] * 256
    tokens += control
    types += [CONTROL] * len(control)
    reserved = len(tokens)
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
    tokens += sorted({letter for word in words for letter in word} | {"▁"})
    types += [NORMAL] * (len(tokens) - reserved)
    scores = [0.0] * reserved + [-float(index) for index in range(len(tokens) - reserved)]
    spm = ToyTokenizer(
        "llama", "default", tokens, types, [], scores, bos="<s>", eos=eos, eot=eot, add_bos=add_bos,
        add_space_prefix=add_space_prefix,
    )  # fmt: skip
    return replace(spm, merges=_spm_merges(tokens, scores, types))


def _to_letters(text: str) -> str:
    return "".join(_LETTERS[byte] for byte in text.encode())


def _merge(parts: list[str], merges: Sequence[tuple[str, str]]) -> list[str]:
    """Apply ``merges`` to ``parts`` as BPE does: always the earliest rule that fits, leftmost first."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    while True:
        fitting = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not fitting:
            return parts
        _, at = min(fitting)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def _spm_merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every split of a token into two tokens, best score first."""
    ids = {token: index for index, token in enumerate(tokens) if types[index] == NORMAL}
    merges = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        splits = [(token[:at], token[at:]) for at in range(1, len(token))]
        fitting = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        merges += sorted(fitting, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _common_json(toy: ToyTokenizer) -> dict[str, Any]:
    added = [
        {"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": toy.types[index] != USER_DEFINED}
        for index, token in enumerate(toy.tokens) if toy.types[index] in (UNKNOWN, CONTROL, USER_DEFINED)
    ]  # fmt: skip
    sequence: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    special: dict[str, Any] = {}
    if toy.add_bos and toy.bos is not None:
        sequence.insert(0, {"SpecialToken": {"id": toy.bos, "type_id": 0}})
        special[toy.bos] = {"id": toy.bos, "ids": [toy.id(toy.bos)], "tokens": [toy.bos]}
    post = {"type": "TemplateProcessing", "single": sequence, "pair": sequence, "special_tokens": special}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": post,
    }


def _model_json(toy: ToyTokenizer, **fields: Any) -> dict[str, Any]:
    vocab = {token: index for index, token in enumerate(toy.tokens)}
    merges = [list(pair) for pair in toy.merges]
    return {
        "type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **fields,
        "vocab": vocab, "merges": merges,
    }  # fmt: skip


def _bpe_json(toy: ToyTokenizer) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLITS[toy.pre]}, "behavior": "Isolated", "invert": False}
    return _common_json(toy) | {
        "normalizer": {"type": "NFC"} if toy.pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": level,
        "model": _model_json(toy, ignore_merges=toy.pre == "llama-bpe"),
    }


def _spm_json(toy: ToyTokenizer) -> dict[str, Any]:
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix = [{"type": "Prepend", "prepend": "▁"}] if toy.add_space_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if toy.add_space_prefix else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return _common_json(toy) | {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, blanks]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": _model_json(toy, unk_token="<unk>", fuse_unk=True, byte_fallback=BYTE in toy.types),
    }
