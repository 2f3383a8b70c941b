"""What a weight file is: format, parts, hashes, and the facts that its manifest records.

The bytes that are parsed are the bytes that are hashed: a file that changes in between is an error, not a
manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rase.errors import CorruptModelFile, ManifestError, ModelFileNotFound, UnsupportedFormat
from rase.registry.files import CancelCheck, Progress, hash_file, open_regular, store_errors
from rase.registry.manifest import ManifestFile, ModelFormat, ModelKind, ModelManifest, list_digest

if TYPE_CHECKING:
    from rase.gguf.modelfile import StoredTensors
    from rase.gguf.reader import GgufFile
    from rase.safetensors.folder import SafetensorsFolder

__all__ = ["Checked", "ModelCheck", "Weights", "gguf_metadata", "read_weights"]


@dataclass(frozen=True)
class Checked:
    """What a file says, in GGUF's keys, what it is for, and what is wrong with it though it runs."""

    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    kind: ModelKind | None = None
    problems: tuple[str, ...] = ()  # one sentence each
    chats: bool = False  # it has a chat template


# What a file says and is for. Raises when rase cannot run it as this architecture with this context length
# (None: what the file says).
ModelCheck = Callable[["GgufFile | SafetensorsFolder", str | None, int | None], Checked]


@dataclass(frozen=True)
class Weights:
    """One registered file or set of files, hashed, with what it says about itself."""

    format: ModelFormat
    path: str  # what the manifest calls `weights`
    files: tuple[ManifestFile, ...]  # every file, one or more, in order
    architecture: str | None = None
    context_length: int | None = None
    checked: Checked = field(default_factory=Checked)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the files say, in GGUF's keys; empty for those that are only hashed."""
        return self.checked.metadata

    @property
    def sha256(self) -> str:
        """The hash that the manifest records: of the one file, or of the list."""
        if self.single:
            return self.files[0].sha256
        folder = self.path if self.format is ModelFormat.SAFETENSORS else os.path.dirname(self.path)
        return list_digest(self.files, folder)

    @property
    def single(self) -> bool:
        return len(self.files) == 1 and self.files[0].path == self.path


def read_weights(
    path: str | os.PathLike[str], *, architecture: str | None = None, context_length: int | None = None,
    check: ModelCheck | None = None, progress: Progress | None = None, cancelled: CancelCheck | None = None,
) -> Weights:  # fmt: skip
    """Recognise, check and hash the weights at ``path``: a GGUF file (any shard), a safetensors file or
    folder.

    Raises ``ModelFileNotFound``, ``UnsupportedFormat``, ``CorruptModelFile``, ``ManifestError`` (an argument
    that contradicts the file), whatever ``check`` raises, and ``StoreError`` when a file cannot be read.
    """
    path = os.path.abspath(os.path.expanduser(os.fspath(path)))
    if os.path.isdir(path):
        return _read_folder(path, architecture, context_length, check, progress, cancelled)
    descriptor = open_regular(path, "the weights file")
    try:
        with store_errors(f"the weights file {path!r} cannot be read"):
            size, start = os.fstat(descriptor).st_size, os.pread(descriptor, 64, 0)
    finally:
        os.close(descriptor)
    if size == 0:
        raise CorruptModelFile(f"{path!r} is empty", hint="Fetch it again.")
    if start[:4] == b"GGUF":
        return _read_gguf(path, architecture, context_length, check, progress, cancelled)
    if path.endswith(".safetensors"):
        from rase.safetensors.header import check_file

        check_file(path)
        sha256, size = hash_file(path, progress, cancelled, what="the weights file")
        return Weights(ModelFormat.SAFETENSORS, path, (ManifestFile(path, size, sha256),))
    raise UnsupportedFormat(
        f"{path!r} is not a model file", expected="a GGUF file, a safetensors file or a folder of those",
        found=_describe(start), hint="Convert the model to GGUF, or look for a GGUF version of it.",
    )  # fmt: skip


def gguf_metadata(manifest: ModelManifest) -> Mapping[str, Any]:
    """The metadata of a registered GGUF file as it is now; empty for other formats and absent files."""
    if manifest.format is not ModelFormat.GGUF:
        return {}
    from rase.gguf.reader import GgufFile

    try:
        with GgufFile.open(manifest.weights) as file:
            return file.metadata
    except ModelFileNotFound:
        return {}


def _read_gguf(
    path: str, architecture: str | None, context_length: int | None, check: ModelCheck | None,
    progress: Progress | None, cancelled: CancelCheck | None,
) -> Weights:  # fmt: skip
    from rase.gguf.reader import GgufFile

    with GgufFile.open(path) as file:
        checked = Checked(file.metadata) if check is None else check(file, architecture, context_length)
        files = _hash(file, progress, cancelled)
    return _found(ModelFormat.GGUF, files[0].path, files, checked, architecture, context_length)


def _read_folder(
    path: str, architecture: str | None, context_length: int | None, check: ModelCheck | None,
    progress: Progress | None, cancelled: CancelCheck | None,
) -> Weights:  # fmt: skip
    """A folder in the layout of transformers; without its config.json for the hashes only."""
    from rase.safetensors.folder import CONFIG, SafetensorsFolder

    if not os.path.lexists(os.path.join(path, CONFIG)):
        return _read_files(path, progress, cancelled)
    with SafetensorsFolder.open(path) as folder:
        checked = Checked({}) if check is None else check(folder, architecture, context_length)
        files = _hash(folder, progress, cancelled)
    return _found(ModelFormat.SAFETENSORS, path, files, checked, architecture, context_length)


def _hash(
    file: StoredTensors, progress: Progress | None, cancelled: CancelCheck | None
) -> tuple[ManifestFile, ...]:
    from rase.gguf.stream import HashedTensors

    hashed = HashedTensors(file, progress, cancelled)
    hashed.deliver({}, lambda *_: None, threads=2)  # one reads, one hashes
    return tuple(
        ManifestFile(os.path.abspath(shard.path), shard.size, sha256)
        for shard, sha256 in zip(file.shards, hashed.digests, strict=True)
    )


def _found(
    format: ModelFormat, path: str, files: tuple[ManifestFile, ...], checked: Checked,
    architecture: str | None, context_length: int | None,
) -> Weights:  # fmt: skip
    metadata = checked.metadata
    name = metadata.get("general.architecture")
    name = name if isinstance(name, str) else None
    longest = metadata.get(f"{name}.context_length")
    longest = longest if isinstance(longest, int) else None
    if context_length is not None and longest is not None and context_length > longest:
        raise ManifestError(
            "the context length contradicts the file", expected=f"at most {longest}", found=context_length,
            hint="Leave --context-length out to use the file's own.",
        )  # fmt: skip
    return Weights(format, path, files, architecture or name, context_length or longest, checked)


def _read_files(path: str, progress: Progress | None, cancelled: CancelCheck | None) -> Weights:
    """A folder that nothing says the meaning of: its safetensors files, and the JSON files beside them."""
    from rase.safetensors.header import check_file

    with store_errors(f"the folder {path!r} cannot be read"):
        names = sorted(name for name in os.listdir(path) if name.endswith((".safetensors", ".json")))
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        found = next((name for name in sorted(os.listdir(path)) if name.endswith(".gguf")), None)
        raise ModelFileNotFound(
            f"{path!r} holds no safetensors files",
            hint=f"Register the file itself: {os.path.join(path, found)!r}."
            if found
            else "Name a weights file.",
        )
    for name in weights:
        check_file(os.path.join(path, name))
    total = sum(os.stat(os.path.join(path, name)).st_size for name in names)
    files: list[ManifestFile] = []
    for name in names:
        before = sum(file.size or 0 for file in files)
        step = None if progress is None else (lambda done, _, before=before: progress(before + done, total))
        sha256, size = hash_file(os.path.join(path, name), step, cancelled, what="the weights file")
        files.append(ManifestFile(os.path.join(path, name), size, sha256))
    return Weights(ModelFormat.SAFETENSORS, path, tuple(files))


def _describe(start: bytes) -> str:
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file that it points to"
    if start.startswith(b"PK\x03\x04"):
        return "a ZIP archive (a package, or PyTorch weights)"
    if start[:4] in (b"ggml", b"ggjt", b"lmgg", b"tjgg", b"fmgg"):
        return "a GGML file, the predecessor of GGUF"
    return f"a file that begins with {start[:16]!r}"
