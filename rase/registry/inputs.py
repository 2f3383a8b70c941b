"""What a caller hands to the registry besides weights: paths, a tokenizer, options; each checked before
use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from rase.errors import InvalidRequest, ManifestError, TokenizerError
from rase.registry.files import read_regular
from rase.registry.manifest import ModelKind
from rase.registry.weights import Weights

__all__ = ["check_options", "check_template", "path_text", "read_tokenizer", "representable"]

TOKENIZER_LIMIT = 256 << 20  # bytes; the largest published tokenizer.json is an eighth of that


def check_options(
    kind: ModelKind | str | None, architecture: str | None, context_length: int | None,
    chat_template: str | None,
) -> ModelKind | None:  # fmt: skip
    """Return the kind, or raise ``InvalidRequest`` naming the option that no manifest could hold."""
    try:
        kind = None if kind is None else ModelKind(kind)
    except ValueError:
        raise InvalidRequest(
            "the kind", expected=" or ".join(ModelKind), found=repr(kind), param="kind"
        ) from None
    for key, value in (("architecture", architecture), ("chat_template", chat_template)):
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidRequest(f"the {key}", expected="a name", found=repr(value), param=key)
    if context_length is not None and not (type(context_length) is int and 1 <= context_length < 2**31):
        raise InvalidRequest(
            "the context length",
            expected="a whole number from 1",
            found=repr(context_length),
            param="context_length",
        )
    return kind


def path_text(value: object, param: str = "path") -> str:
    """Return a path as text, or raise ``InvalidRequest`` naming ``param`` for what is no path or empty."""
    try:
        text = os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        text = ""
    if not text or "\0" in text:
        raise InvalidRequest(f"the {param}", expected="a path", found=f"{value!r:.80}", param=param)
    return text


def representable(path: str | os.PathLike[str]) -> None:
    path = path_text(path)
    try:
        os.path.abspath(os.fspath(path)).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the path {os.fspath(path)!a} is not valid UTF-8, so no manifest can hold it",
            hint="Rename the file or folder.", param="path",
        ) from None  # fmt: skip


def read_tokenizer(path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return (absolute path, SHA-256) of a ``tokenizer.json`` that builds and that fits the model.

    ``metadata`` is that of the model's GGUF file (empty for other formats): a tokenizer with more tokens than
    the model, or with other special tokens, is a ``TokenizerError`` here instead of nonsense later.
    """
    from rase.text.tokenizer import LocalTokenizer

    representable(path)
    path = os.path.abspath(os.path.expanduser(os.fspath(path)))
    data = tokenizer_bytes(path)
    LocalTokenizer.from_json(data).with_metadata(metadata)
    return path, hashlib.sha256(data).hexdigest()


def tokenizer_bytes(path: str) -> bytes:
    """Return what a ``tokenizer.json`` holds: a regular file of bounded size.

    Raises ``ModelFileNotFound``, ``StoreError`` or ``TokenizerError``.
    """
    data = read_regular(path, TOKENIZER_LIMIT + 1, "the tokenizer")
    if not 0 < len(data) <= TOKENIZER_LIMIT:
        found = "an empty file" if not data else "more"
        raise TokenizerError(f"the tokenizer {path!r}", expected="1 byte to 256 MiB", found=found)
    return data


def check_template(name: str, found: Weights) -> None:
    if not found.metadata:  # registered for its hashes only
        return
    if name == "gguf":
        if not isinstance(found.metadata.get("tokenizer.chat_template"), str):
            raise ManifestError(
                "the chat template 'gguf'", expected="a file with a template of its own", found="none in it",
                hint="Choose a built-in template (chatml, llama3, mistral), or leave --chat-template out.",
            )  # fmt: skip
        return
    from rase.text.chat import ChatTemplate

    ChatTemplate.named(name)
