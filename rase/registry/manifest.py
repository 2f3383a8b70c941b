"""The manifest: the TOML file that says which files are a model and what their hashes are.

One model::

    id = "qwen3-4b"
    kind = "generator"                 # generator | embedding
    format = "gguf"                    # gguf | safetensors
    weights = "/models/qwen3-4b.gguf"  # absolute; the first shard of a split file; a folder for safetensors
    sha256 = "…"
    tokenizer = "/models/tokenizer.json"
    tokenizer_sha256 = "…"
    architecture = "qwen3"
    context_length = 262144
    chat_template = "chatml"           # a built-in name, or "gguf" for the file's own

    [[files]]                          # only where a model has several files
    path = "/models/qwen3-4b-00001-of-00002.gguf"
    size = 4000000000
    sha256 = "…"

With ``[[files]]``, ``sha256`` covers the list: it is the SHA-256 of one line ``<sha256>  <name>\\n`` per
file, in the order of the list, where ``name`` is the path from the folder that holds them. That is the output
of ``sha256sum``, so ``cd FOLDER && sha256sum NAME… | sha256sum`` gives the same value.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rase.errors import InvalidModelId, ManifestError

__all__ = [
    "ManifestFile", "ModelFormat", "ModelKind", "ModelManifest", "check_id", "is_id", "list_digest",
]  # fmt: skip

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TEXT_KEYS = (
    "id", "kind", "format", "weights", "sha256", "tokenizer", "tokenizer_sha256", "architecture",
    "chat_template",
)  # fmt: skip
_KEYS = (*_TEXT_KEYS[:-1], "context_length", "chat_template", "files")  # the order in which they are written
_REQUIRED = ("id", "kind", "format", "weights", "sha256")
_REGISTER_AGAIN = "Register the model again, or remove the manifest."


class ModelKind(StrEnum):
    """What a model is for."""

    GENERATOR = "generator"
    EMBEDDING = "embedding"


class ModelFormat(StrEnum):
    """The container that holds the weights."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


def is_id(value: object) -> bool:
    """Whether ``value`` can be the id of a model."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def check_id(id: str) -> str:
    """Return ``id``, or raise ``InvalidModelId``: an id is a file name, so nothing else may pass."""
    if not is_id(id):
        raise InvalidModelId(
            f"{str(id)[:140]!r} is not a model id",
            expected="1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or a digit",
            param="model",
        )
    return id


@dataclass(frozen=True)
class ManifestFile:
    """One weight file: absolute ``path``, ``size`` in bytes (None where only the hash is recorded),
    ``sha256``.
    """

    path: str
    size: int | None
    sha256: str


def list_digest(files: Sequence[ManifestFile], folder: str) -> str:
    """Return the SHA-256 that covers ``files``, whose names are taken from ``folder`` (see the module's
    page).
    """
    lines = [f"{file.sha256}  {os.path.relpath(file.path, folder)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class ModelManifest:
    """What the store knows about one model; ``ManifestError`` when the fields contradict each other."""

    id: str
    kind: ModelKind
    format: ModelFormat
    weights: str
    sha256: str
    tokenizer: str | None = None
    tokenizer_sha256: str | None = None
    architecture: str | None = None
    context_length: int | None = None
    chat_template: str | None = None
    files: tuple[ManifestFile, ...] = ()

    def __post_init__(self) -> None:
        check_id(self.id)
        set_field = object.__setattr__  # the class is frozen; text and lists become what the fields promise
        set_field(self, "kind", _choice(self, "kind", ModelKind))
        set_field(self, "format", _choice(self, "format", ModelFormat))
        set_field(self, "files", tuple(self.files))
        for key in ("weights", "tokenizer"):
            _check_path(self.id, key, getattr(self, key))
        for key in ("sha256", "tokenizer_sha256"):
            _check_digest(self.id, key, getattr(self, key))
        for key in ("architecture", "chat_template"):
            if getattr(self, key) is not None and not _is_text(getattr(self, key)):
                raise _bad(self.id, key, "text that is not empty", getattr(self, key))
        length = self.context_length
        if length is not None and not (_is_integer(length) and 1 <= length < 2**31):
            raise _bad(self.id, "context_length", "a whole number from 1 to 2147483647", length)
        if (self.tokenizer is None) != (self.tokenizer_sha256 is None):
            raise _bad(
                self.id, "tokenizer", "both 'tokenizer' and 'tokenizer_sha256', or neither", "one of them"
            )
        self._check_files()

    def _check_files(self) -> None:
        for number, file in enumerate(self.files):
            _check_path(self.id, f"files[{number}].path", file.path)
            _check_digest(self.id, f"files[{number}].sha256", file.sha256)
            if not _is_integer(file.size) or not 0 <= file.size < 2**63:  # type: ignore[operator]
                raise _bad(self.id, f"files[{number}].size", "a number of bytes", file.size)
        if not self.files:
            return
        paths = [file.path for file in self.files]
        if len(set(paths)) != len(paths):
            raise _bad(self.id, "files", "each path once", "a path twice")
        if self.format is ModelFormat.GGUF and paths[0] != self.weights:
            raise _bad(self.id, "weights", "the first of 'files'", repr(self.weights))
        folder = self.folder
        for path in paths:
            if os.path.commonpath([folder, path]) != folder:
                raise _bad(self.id, "files", f"files inside {folder!r}", repr(path))
        if (digest := list_digest(self.files, folder)) != self.sha256:
            raise _bad(self.id, "sha256", f"{digest}, which covers 'files'", self.sha256)

    @property
    def folder(self) -> str:
        """The folder of the weights: ``weights`` itself where that is a folder of files."""
        single = not self.files or any(file.path == self.weights for file in self.files)
        return os.path.dirname(self.weights) if single else self.weights

    @property
    def weight_files(self) -> tuple[ManifestFile, ...]:
        """Every weight file in order (the shards of a split file, else the one file), each with its
        SHA-256.
        """
        return self.files or (ManifestFile(self.weights, None, self.sha256),)

    def to_toml(self) -> str:
        """Return the manifest as TOML; the same manifest always gives the same bytes."""
        import tomli_w

        table: dict[str, Any] = {}
        for key in _KEYS[:-1]:
            if (value := getattr(self, key)) is not None:
                table[key] = str(value) if isinstance(value, StrEnum) else value
        if self.files:
            table["files"] = [
                {"path": file.path, "size": file.size, "sha256": file.sha256} for file in self.files
            ]
        return tomli_w.dumps(table)

    @classmethod
    def from_toml(cls, text: str) -> ModelManifest:
        """Read a manifest; raises ``ManifestError`` that names the key (``InvalidModelId`` never leaves
        here).
        """
        try:
            import tomli as toml
        except ModuleNotFoundError:  # the same parser, without its compiled part
            import tomllib as toml  # type: ignore[no-redef]
        try:
            table = toml.loads(text)
        except (ValueError, RecursionError) as error:  # no TOML, or a number of too many digits
            raise ManifestError(
                "the manifest is not TOML", found=str(error)[:200], hint=_REGISTER_AGAIN
            ) from None
        name = table.get("id", "?")
        for key in _REQUIRED:
            if key not in table:
                raise _bad(name, key, "a value", "nothing")
        for key, value in table.items():
            if key not in _KEYS:
                raise _bad(name, key, "one of " + ", ".join(_KEYS), "a key that this version does not know")
            if key in _TEXT_KEYS and not _is_text(value):
                raise _bad(name, key, "text that is not empty", value)
        try:
            return cls(**{**table, "files": _read_files(name, table.get("files", []))})
        except InvalidModelId as error:
            raise ManifestError(error.what, expected=error.expected, hint=_REGISTER_AGAIN) from None


def _read_files(name: object, value: object) -> tuple[ManifestFile, ...]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise _bad(name, "files", "a list of tables", type(value).__name__)
    for item in value:
        if set(item) != {"path", "size", "sha256"}:
            raise _bad(
                name,
                "files",
                "tables with path, size and sha256",
                ", ".join(sorted(map(str, item))) or "none",
            )
    return tuple(ManifestFile(item["path"], item["size"], item["sha256"]) for item in value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _choice(manifest: ModelManifest, key: str, kind: type[StrEnum]) -> StrEnum:
    try:
        return kind(getattr(manifest, key))
    except ValueError:
        raise _bad(manifest.id, key, " or ".join(kind), repr(getattr(manifest, key))) from None


def _check_path(id: object, key: str, value: object) -> None:
    if value is None and key == "tokenizer":
        return
    if not isinstance(value, str) or not os.path.isabs(value) or "\0" in value:
        raise _bad(id, key, "an absolute path", repr(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad(id, key, "a path in UTF-8", ascii(value)) from None


def _check_digest(id: object, key: str, value: object) -> None:
    if value is None and key == "tokenizer_sha256":
        return
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise _bad(id, key, "64 lower-case hexadecimal digits", repr(value))


def _bad(id: object, key: str, expected: object, found: object) -> ManifestError:
    return ManifestError(
        f"manifest of '{id}': '{key}'",
        expected=expected,
        found=str(found)[:200],
        hint=_REGISTER_AGAIN,
        key=key,
    )
