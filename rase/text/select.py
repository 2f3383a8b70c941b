"""Which chat template a model uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rase.errors import ManifestError
from rase.text.chat import ChatTemplate
from rase.text.core import metadata_id
from rase.text.templates import BUILTIN

__all__ = ["choose_template"]

_KEY = "tokenizer.chat_template"


def choose_template(
    manifest_value: str | None, gguf_metadata: Mapping[str, Any], architecture_default: str | None
) -> ChatTemplate | None:
    """The manifest's choice, else the file's own template, else the architecture's default, else None.

    ``manifest_value``: a built-in name, or ``gguf`` for the file's own. ``architecture_default``: a built-in
    name. Raises ``ManifestError`` for another value, or for ``gguf`` when the file has no template.
    """
    source = gguf_metadata.get(_KEY)
    own = source if isinstance(source, str) and source.strip() else None
    if manifest_value in BUILTIN:
        return ChatTemplate.named(manifest_value)
    if manifest_value not in (None, "gguf"):
        raise ManifestError(
            "unknown chat template in the manifest",
            expected="one of " + ", ".join([*BUILTIN, "gguf"]),
            found=repr(manifest_value),
        )
    if own is not None:
        return ChatTemplate.from_source(
            own, bos=_token(gguf_metadata, "bos"), eos=_token(gguf_metadata, "eos")
        )
    if manifest_value == "gguf":
        raise ManifestError(
            "the manifest asks for the file's own chat template, but the file has none",
            expected=f"metadata {_KEY}",
            hint="Register the model with --chat-template chatml, llama3 or mistral.",
        )
    return ChatTemplate.named(architecture_default) if architecture_default else None


def _token(metadata: Mapping[str, Any], name: str) -> str | None:
    own = metadata.get(f"tokenizer.{name}_token")  # a safetensors folder spells it
    if isinstance(own, str):
        return own
    names = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(names, list):
        return None
    token = metadata_id(metadata, f"{name}_token_id", len(names))
    return None if token is None else names[token]
