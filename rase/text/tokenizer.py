"""LocalTokenizer: text to token ids and back, from a tokenizer.json or from a GGUF file's own vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rase.errors import InvalidRequest, ModelFileNotFound, TokenizerError
from rase.text.added import AddedTokens
from rase.text.core import SPECIAL_IDS, TokenizerCore, metadata_flag, metadata_id
from rase.text.segments import Segment, join_segments
from rase.text.streaming import TokenStream

__all__ = ["LocalTokenizer"]


class LocalTokenizer:
    """Encodes and decodes; immutable, and safe to share between threads.

    ``vocab_size``: number of ids, holes included. ``bos_id``, ``eos_id``: int or None. ``end_ids``: every
    token that ends an answer. ``add_bos``: whether the model expects BOS at the start of a prompt.
    """

    def __init__(self, core: TokenizerCore) -> None:
        self._core = core
        self._added = AddedTokens(core.added)
        self.vocab_size: int = len(core.vocabulary)
        self.bos_id: int | None = core.bos_id
        self.eos_id: int | None = core.eos_id
        self.end_ids: frozenset[int] = core.end_ids
        self.add_bos: bool = core.add_bos

    @classmethod
    def from_file(cls, path: str | Path) -> LocalTokenizer:
        """Read a Hugging Face ``tokenizer.json``.

        Raises ``ModelFileNotFound`` and ``TokenizerError``.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ModelFileNotFound(
                f"the tokenizer file {path} cannot be read",
                found=error.strerror or str(error),
                path=str(path),
            ) from None
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: bytes) -> LocalTokenizer:
        """Build from the bytes of a ``tokenizer.json``. Raises ``TokenizerError``."""
        from rase.text.hf import core_from_json

        return cls(core_from_json(data))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> LocalTokenizer:
        """Build from the metadata of a GGUF file (``GgufFile.metadata``).

        Raises ``TokenizerError`` for a vocabulary or pre-tokenizer that is not supported, naming it.
        """
        value = metadata.get("tokenizer.ggml.model")
        model = value if isinstance(value, str) else None
        if model == "gpt2":
            from rase.text.bpe import core_from_bpe as build
        elif model == "llama":
            from rase.text.spm import core_from_spm as build
        elif model == "bert":
            from rase.text.wordpiece import core_from_wordpiece as build
        elif model == "t5":
            from rase.text.unigram import core_from_unigram as build
        else:
            raise TokenizerError(
                "this model comes without a tokenizer"
                if value is None or model == "none"
                else "this file's kind of vocabulary (tokenizer.ggml.model) is not supported",
                expected="'gpt2' (byte-level BPE), 'llama' (SentencePiece), 'bert' (WordPiece) or 't5'; "
                "in a folder a tokenizer.json",
                found="no such key" if value is None else repr(value)[:80],
                hint="Attach the model's own: rase model attach-tokenizer ID --tokenizer tokenizer.json",
            )
        return cls(build(metadata))

    def with_metadata(self, metadata: Mapping[str, Any]) -> LocalTokenizer:
        """Return this (attached) tokenizer with the special ids and flags that the model's file declares.

        Raises ``TokenizerError`` when the two do not belong together: more tokens than the model has, or
        another spelling of one of the special tokens.
        """
        core, names = self._core, metadata.get("tokenizer.ggml.tokens")
        size = len(names) if isinstance(names, list) else self.vocab_size
        if self.vocab_size > size:
            raise TokenizerError(
                "the attached tokenizer has more tokens than the model",
                expected=f"at most {size}",
                found=self.vocab_size,
            )
        found: dict[str, int] = {}
        for key in SPECIAL_IDS:
            token = metadata_id(metadata, key, size)
            if token is None or token >= self.vocab_size:
                continue
            if isinstance(names, list) and names[token] != core.vocabulary.names[token]:
                raise TokenizerError(
                    f"the attached tokenizer does not belong to this model: token {token} ({key}) differs",
                    expected=repr(names[token]),
                    found=repr(core.vocabulary.names[token]),
                )
            found[key] = token
        bos, eos = found.get("bos_token_id", core.bos_id), found.get("eos_token_id", core.eos_id)
        ends = core.end_ids | {token for key, token in found.items() if key != "bos_token_id"}
        return LocalTokenizer(
            replace(
                core,
                bos_id=bos,
                eos_id=eos,
                end_ids=ends,
                add_bos=bos is not None and metadata_flag(metadata, "add_bos_token", core.add_bos),
                add_eos=eos is not None and metadata_flag(metadata, "add_eos_token", core.add_eos),
            )
        )

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Encode ``text``.

        ``add_special_tokens`` adds BOS (and EOS) where the model expects them and the text has none yet.
        ``parse_special`` makes ids of the added tokens spelled in the text (raw prompts); without it the text
        is data and can give no added token.
        """
        ids = self._encode([Segment(text, "markup" if parse_special else "text")])
        return self._with_special(ids) if add_special_tokens else ids

    def encode_segments(self, segments: Iterable[Segment]) -> list[int]:
        """Encode a rendered prompt; text between two added tokens is one run, whoever wrote its parts.

        So content without added tokens gives exactly the ids of the whole rendered string. BOS comes exactly
        once where the model expects it, whether the template wrote it or not.
        """
        ids = self._encode(join_segments(segments))
        bos = self.bos_id
        while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            del ids[0]
        if self.add_bos and bos is not None and (not ids or ids[0] != bos):
            ids.insert(0, bos)
        return ids

    def same_tokens(self, other: LocalTokenizer) -> bool:
        """Whether every id stands for the same token in both, so that one can read what the other writes."""
        return list(self._core.vocabulary.names) == list(other._core.vocabulary.names)

    def least_tokens(self, text: str) -> int:
        """How many tokens ``text`` has at least, found without encoding it; 0 when nothing is known."""
        return self._core.reach.least(text) if self._core.reach is not None else 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text that a ``stream`` of ``ids`` gives. Raises ``InvalidRequest`` for an unknown id."""
        stream = self.stream(skip_special_tokens)
        parts = [stream.push(token) for token in ids]
        return "".join(parts) + stream.flush()

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """Return a fresh decoder for the ids of one answer."""
        return TokenStream(
            self._core.vocabulary, skip_special_tokens=skip_special_tokens, strip_blank=self._core.strip_blank
        )

    def piece(self, token: int) -> str:
        """The text of one token by itself; bytes that are no whole character show as U+FFFD."""
        return self.piece_bytes(token).decode("utf-8", "replace")

    def piece_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for. Raises ``InvalidRequest`` for an unknown id."""
        return self._core.vocabulary.pieces[self._core.vocabulary.check(token)]

    def name_of(self, token: int) -> str:
        """The vocabulary's own spelling of a token. Raises ``InvalidRequest`` for an unknown id."""
        return self._core.vocabulary.names[self._core.vocabulary.check(token)]

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by the vocabulary's own spelling (``<|im_end|>``, ``Ġthe``), or None."""
        return self._core.vocabulary.ids.get(token)

    def _encode(self, segments: list[Segment]) -> list[int]:
        text = "".join(segment.text for segment in segments)
        _refuse_surrogates(text)
        ids: list[int] = []
        cursor = 0
        for match in self._added.find(segments):
            self._encode_run(text, cursor, match.start, ids)
            ids.append(match.id)
            cursor = match.end
        self._encode_run(text, cursor, len(text), ids)
        return ids

    def _encode_run(self, text: str, start: int, end: int, ids: list[int]) -> None:
        if start < end:
            encode = self._core.encode_first if start == 0 else self._core.encode_later
            ids.extend(encode(text[start:end]))

    def _with_special(self, ids: list[int]) -> list[int]:
        if self.add_bos and self.bos_id is not None and (not ids or ids[0] != self.bos_id):
            ids = [self.bos_id, *ids]
        if self._core.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
            ids = [*ids, self.eos_id]
        return ids


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "the text is not valid Unicode",
            expected="no lone surrogates",
            found=f"U+{ord(text[error.start]):04X}",
        ) from None
