"""From a loaded program to what a session holds: tokenizer, manifest, fingerprint; and its hashes checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rase.errors import IntegrityMismatch, InvalidRequest, ManifestError, UnsupportedFormat
from rase.memory import return_freed

if TYPE_CHECKING:
    from rase.loading import LoadedProgram
    from rase.registry.manifest import ModelKind, ModelManifest
    from rase.text.tokenizer import LocalTokenizer

__all__ = ["check_digests", "check_runs", "fingerprint", "manifest_of", "tokenizer_of"]


def fingerprint(*facts: object) -> str:
    """Short name of the facts that decide the bits of an answer: no path, no id, equal on every machine."""
    return "fp_" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def check_runs(manifest: ModelManifest, kind: ModelKind) -> None:
    """Raise ``UnsupportedFormat`` or ``InvalidRequest`` for a model of another kind, or that cannot run."""
    from rase.registry.manifest import ModelFormat

    if manifest.format is not ModelFormat.GGUF and not manifest.files:
        raise UnsupportedFormat(
            f"model '{manifest.id}' cannot run", expected="a GGUF file, or a folder with its config.json",
            found="one safetensors file", hint="Register the folder that holds it.",
        )  # fmt: skip
    if manifest.kind is not kind:
        what = (
            "generates text and makes no embeddings"
            if kind == "embedding"
            else "makes embeddings and no text"
        )
        raise InvalidRequest(
            f"model '{manifest.id}' {what}", expected=f"a model of kind {kind.value}",
            found=manifest.kind.value, param="model")  # fmt: skip


def check_digests(manifest: ModelManifest, loaded: LoadedProgram) -> None:
    """Raise ``IntegrityMismatch`` unless the bytes that were read have the manifest's hashes."""
    files = manifest.weight_files
    if len(files) != len(loaded.digests):
        raise ManifestError(
            f"model '{manifest.id}'", expected=f"{len(files)} weight files, as registered",
            found=len(loaded.digests), hint="Register the model again.")  # fmt: skip
    for file, digest in zip(files, loaded.digests, strict=True):
        if file.sha256 != digest:
            raise IntegrityMismatch(manifest.id, file.sha256, digest, path=file.path)


def tokenizer_of(manifest: ModelManifest, loaded: LoadedProgram) -> LocalTokenizer:
    """The attached tokenizer.json, else the file's own vocabulary.

    Raises ``IntegrityMismatch``, ``TokenizerError``, and ``ManifestError`` for more tokens than the model
    has.
    """
    from rase.registry.inputs import tokenizer_bytes
    from rase.text.tokenizer import LocalTokenizer

    if manifest.tokenizer is None and loaded.tokenizer_json is not None:
        tokenizer = LocalTokenizer.from_json(loaded.tokenizer_json).with_metadata(loaded.metadata)
    elif manifest.tokenizer is None:
        tokenizer = LocalTokenizer.from_gguf(loaded.metadata)
    else:
        data = tokenizer_bytes(manifest.tokenizer)
        digest = hashlib.sha256(data).hexdigest()
        if manifest.tokenizer_sha256 != digest:
            raise IntegrityMismatch(
                manifest.id, str(manifest.tokenizer_sha256), digest, path=manifest.tokenizer)  # fmt: skip
        tokenizer = LocalTokenizer.from_json(data).with_metadata(loaded.metadata)
    rows = loaded.program.graph.vocab_size
    if tokenizer.vocab_size > rows:
        raise ManifestError(
            f"the tokenizer of model '{manifest.id}'", expected=f"at most {rows} tokens",
            found=tokenizer.vocab_size, hint="Attach the tokenizer.json of this model.")  # fmt: skip
    return_freed()
    return tokenizer


def manifest_of(
    loaded: LoadedProgram,
    *,
    tokenizer: str | os.PathLike[str] | None,
    architecture: str | None,
    context_length: int | None,
    chat_template: str | None,
) -> ModelManifest:
    """The manifest of a file that is in no store: its hashes are those of what was read."""
    from rase.registry.inputs import path_text, tokenizer_bytes
    from rase.registry.manifest import ManifestFile, ModelFormat, ModelKind, ModelManifest, list_digest

    paths = [os.path.abspath(shard) for shard in loaded.paths]
    files = tuple(
        ManifestFile(shard, size, digest)  # by now the file may be gone
        for shard, size, digest in zip(paths, loaded.sizes, loaded.digests, strict=True))  # fmt: skip
    several = len(files) > 1
    manifest = ModelManifest(
        id=_id_of(Path(loaded.location)), kind=ModelKind(loaded.kind), format=ModelFormat(loaded.format),
        weights=loaded.location,
        sha256=list_digest(files, os.path.dirname(paths[0])) if several else files[0].sha256,
        architecture=architecture, context_length=context_length, chat_template=chat_template,
        files=files if several else (),
    )  # fmt: skip
    if tokenizer is None:
        return manifest
    location = os.path.abspath(path_text(tokenizer, "tokenizer"))
    digest = hashlib.sha256(tokenizer_bytes(location)).hexdigest()
    return replace(manifest, tokenizer=location, tokenizer_sha256=digest)


def _id_of(path: Path) -> str:
    """A model id for a file that is in no store: its name, with what an id may not hold replaced."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)
    return (name.lstrip("._-") or "model")[:128]
