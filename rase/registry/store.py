"""ModelRegistry: the store on disk, its operations, and the promise that a crash leaves each model old or
new.
"""

from __future__ import annotations

import builtins
import contextlib
import difflib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rase.errors import (
    EngineError,
    IntegrityMismatch,
    InvalidRequest,
    ManifestError,
    ModelFileNotFound,
    ModelNotFound,
    SourceError,
    StoreError,
)
from rase.registry.files import (
    CancelCheck,
    Progress,
    hash_file,
    make_folder,
    open_regular,
    read_regular,
    remove_file,
    remove_tree,
    store_errors,
    sync_file,
    sync_folder,
    temporary_name,
    write_atomic,
)  # fmt: skip
from rase.registry.inputs import check_options, check_template, path_text, read_tokenizer, representable
from rase.registry.leftovers import clean, orphans
from rase.registry.locks import file_lock, workspace
from rase.registry.manifest import ModelKind, ModelManifest, check_id, is_id
from rase.registry.weights import Checked, gguf_metadata, read_weights

if TYPE_CHECKING:
    from rase.gguf.reader import GgufFile
    from rase.safetensors.folder import SafetensorsFolder

__all__ = ["ImportedModel", "ModelRegistry", "RemovedModel"]

_log = logging.getLogger("rase.registry")
_MANIFEST_LIMIT = 1 << 20  # bytes; the largest sensible manifest, thousands of files, is a tenth of that
_NOT_FOUND_HINT = (
    "'rase model list' shows what is registered; 'rase model import' and 'rase model pull' add a model."
)
_RENAME = "Rename or remove the file: letters, digits, '.', '_' and '-' make an id."


@dataclass(frozen=True)
class ImportedModel:
    """The result of registering a model."""

    manifest: ModelManifest
    manifest_path: Path
    replaced: ModelManifest | None  # the manifest that had this id before
    size: int  # bytes of all weight files
    seconds: float  # for checking and hashing
    problems: tuple[str, ...] = ()  # what is wrong with the file's own tokenizer, though the model runs
    chats: bool = False  # it has a chat template


@dataclass(frozen=True)
class RemovedModel:
    """The result of removing a model."""

    id: str
    manifest: ModelManifest | None  # None when the manifest could not be read
    freed_bytes: int  # weights that the store owned
    kept: tuple[str, ...]  # files that stay where they are, because the store never owned them


class ModelRegistry:
    """A model store. Reading takes no lock; every change holds the store's lock and is durable when it
    returns.

    Safe for many threads and processes. ``rase.store`` adds the check that a file can run.
    """

    def __init__(self, root: str | os.PathLike[str], *, lock_timeout: float = 10.0):
        self.root = Path(os.path.abspath(os.path.expanduser(path_text(root, "store"))))
        self.lock_timeout = lock_timeout
        self._manifests = self.root / "manifests"
        self._weights = self.root / "weights"
        with store_errors(f"the store {str(self.root)!r} could not be opened"):
            make_folder(self._manifests)
        clean(self)

    @classmethod
    def open(cls, root: str | os.PathLike[str], *, lock_timeout: float = 10.0) -> Self:
        """Open the store in the folder ``root``, creating it if absent, and remove what a killed process
        left.

        Raises ``StoreError``. A store that may only be read opens, too.
        """
        return cls(root, lock_timeout=lock_timeout)

    def __repr__(self) -> str:
        return f"ModelRegistry({str(self.root)!r})"

    def check(
        self, file: GgufFile | SafetensorsFolder, architecture: str | None, context_length: int | None,
        kind: ModelKind | None,
    ) -> Checked:  # fmt: skip
        """What a file says and what it is for; raises where it cannot run.

        For a subclass that knows the architectures; this class reads GGUF files only. ``architecture``,
        ``context_length`` and ``kind`` are those that the caller gave.
        """
        return Checked(getattr(file, "metadata", {}), kind or ModelKind.GENERATOR)

    # Reading

    def get(self, id: str) -> ModelManifest:
        """Return the manifest of ``id``; hashes are not recomputed.

        Raises ``InvalidModelId``, ``ModelNotFound``, ``ManifestError``, ``StoreError``.
        """
        try:
            data = read_regular(self._path(id), _MANIFEST_LIMIT + 1, f"the manifest of '{id}'")
        except ModelFileNotFound as error:
            if os.path.lexists(self._path(id)):
                raise ManifestError(f"the manifest of '{id}' cannot be read", found=error.found) from None
            raise self._not_found(id) from None
        if len(data) > _MANIFEST_LIMIT:
            raise ManifestError(f"the manifest of '{id}'", expected="at most 1 MiB", found="more")
        try:
            manifest = ModelManifest.from_toml(data.decode())
        except UnicodeDecodeError as error:
            raise ManifestError(f"the manifest of '{id}' is not UTF-8", found=str(error)) from None
        except ManifestError as error:
            raise ManifestError(
                f"the manifest of '{id}' cannot be used: {error.what}", expected=error.expected,
                found=error.found,
                hint=f"Register the model again, or remove it with 'rase model remove {id}'.", id=id,
            ) from None  # fmt: skip
        if manifest.id != id:  # a copied manifest, or a file system that folds 'A' and 'a' together
            raise ManifestError(
                f"the manifest of '{id}'",
                expected=f"id '{id}'",
                found=f"id '{manifest.id}'",
                other=manifest.id,
            )
        return manifest

    def list(self) -> list[ModelManifest]:
        """Return every readable manifest, sorted by id; a broken one is logged as a warning and left out."""
        good, broken = self.scan()
        for id, error in broken.items():
            _log.warning("model '%s' is left out: %s", id, error)
        return [*good]

    def scan(self) -> tuple[Sequence[ModelManifest], dict[str, EngineError]]:
        """Return the readable manifests, sorted by id, and the error of each one that is not.

        A file whose name is no id, put there by hand, is one of those, its name written in ASCII.
        """
        good: builtins.list[ModelManifest] = []
        broken: dict[str, EngineError] = {}
        for name in self._names():
            if not is_id(name):
                error = ManifestError(f"{name!a} is not a model id", hint=_RENAME)
                broken[name.encode("unicode_escape").decode()] = error
        for id in self.ids():
            try:
                good.append(self.get(id))
            except ModelNotFound:
                continue  # removed since the folder was read
            except (ManifestError, StoreError) as problem:
                broken[id] = problem
        return good, broken

    def ids(self) -> Sequence[str]:
        """Return the ids of all manifests, readable or not, sorted."""
        return [name for name in self._names() if is_id(name)]

    def verify(
        self, id: str, progress: Progress | None = None, cancelled: CancelCheck | None = None
    ) -> ModelManifest:
        """Hash the weights and the tokenizer again and compare them with the manifest, which is returned.

        ``progress(done, total)`` counts the bytes of all files. Raises ``IntegrityMismatch`` (naming the
        file), ``ModelFileNotFound``, and what ``get`` raises.
        """
        manifest = self.get(id)
        files = [(file.path, file.sha256, file.size, "the weights file") for file in manifest.weight_files]
        if manifest.tokenizer is not None and manifest.tokenizer_sha256 is not None:
            files.append((manifest.tokenizer, manifest.tokenizer_sha256, None, "the tokenizer"))
        total = done = 0
        for path, _, _, what in files:  # absent files are reported before anything is hashed
            descriptor = open_regular(path, f"model '{id}': {what}")
            total += os.fstat(descriptor).st_size
            os.close(descriptor)
        for path, sha256, size, what in files:
            step = None if progress is None else (lambda part, _, before=done: progress(before + part, total))
            found, length = hash_file(path, step, cancelled, what=f"model '{id}': {what}")
            if found != sha256 or (size is not None and size != length):
                raise IntegrityMismatch(id, sha256, found, path=path)
            done += length
        return manifest

    # Changing

    def import_local(
        self, id: str, weights: str | os.PathLike[str], kind: ModelKind | str | None = None,
        architecture: str | None = None, context_length: int | None = None, chat_template: str | None = None,
        progress: Progress | None = None, *, tokenizer: str | os.PathLike[str] | None = None,
        expected: Sequence[str | None] = (), take: bool = False, cancelled: CancelCheck | None = None,
    ) -> ImportedModel:  # fmt: skip
        """Register a local file as ``id``: check that it can run, hash it, write the manifest.

        A GGUF file (any shard of a split one) is parsed and its architecture and context length are recorded;
        arguments that contradict it are refused; without a ``kind`` it is what the file is for. The same
        holds for a folder with its config.json; other safetensors files are registered for their hashes only.
        The file stays where it is, unless ``take`` moves it (from the same file system) into the store, which
        then owns it. An existing model of this id is replaced, its attached tokenizer included. ``tokenizer``
        is attached in the same step; ``expected`` holds the hashes that the weight files must have.

        Raises ``InvalidModelId``, ``InvalidRequest``, ``ModelFileNotFound``, ``UnsupportedFormat``,
        ``UnsupportedArchitecture``, ``CorruptModelFile``, ``ManifestError``, ``SourceError`` (``expected``
        differs), ``TokenizerError``, ``StoreError``, ``StoreLocked``; nothing is registered then.
        """
        check_id(id)
        started = time.perf_counter()
        kind = check_options(kind, architecture, context_length, chat_template)
        representable(weights)
        found = read_weights(
            weights, architecture=architecture, context_length=context_length,
            check=partial(self.check, kind=kind), progress=progress, cancelled=cancelled,
        )  # fmt: skip
        kind = found.checked.kind or kind or ModelKind.GENERATOR
        if chat_template is not None:
            check_template(chat_template, found)
        attached = None if tokenizer is None else read_tokenizer(tokenizer, found.metadata)
        for file, sha256 in zip(found.files, expected, strict=False):
            if sha256 is not None and sha256 != file.sha256:
                raise SourceError(
                    f"{os.path.basename(file.path)!r} is not the file that was asked for",
                    expected=f"SHA-256 {sha256}", found=file.sha256,
                    hint="Fetch it again; nothing was registered.",
                )  # fmt: skip
        taken = None
        if take:
            if not found.single:
                raise InvalidRequest("only a single file can be moved into the store")
            taken = Path(found.path)
            owned = str(self._weights / id / found.sha256[:16] / taken.name)
            found = replace(found, path=owned, files=(replace(found.files[0], path=owned),))
        tokenizer_path, tokenizer_sha256 = attached or (None, None)
        manifest = ModelManifest(
            id=id, kind=kind, format=found.format, weights=found.path, sha256=found.sha256,
            tokenizer=tokenizer_path, tokenizer_sha256=tokenizer_sha256,
            architecture=found.architecture or architecture,
            context_length=found.context_length or context_length,
            chat_template=chat_template, files=() if found.single else found.files,
        )  # fmt: skip
        replaced = self._commit(manifest, taken)
        size = sum(file.size or 0 for file in found.files)
        problems = found.checked.problems if attached is None else ()
        return ImportedModel(
            manifest, self._path(id), replaced, size, time.perf_counter() - started, problems,
            found.checked.chats or chat_template is not None,
        )  # fmt: skip

    def attach_tokenizer(self, id: str, path: str | os.PathLike[str]) -> ModelManifest:
        """Attach a ``tokenizer.json`` to ``id`` (replacing one attached before) and return the new manifest.

        It is built once, from the bytes that are hashed, and must fit the model's own vocabulary. Raises
        ``TokenizerError``, ``ModelFileNotFound``, ``StoreError``, ``StoreLocked`` and what ``get`` raises.
        """
        tokenizer, sha256 = read_tokenizer(path, gguf_metadata(self.get(id)))
        with self._lock():
            manifest = replace(self.get(id), tokenizer=tokenizer, tokenizer_sha256=sha256)
            with store_errors(f"the tokenizer could not be attached to '{id}'"):
                write_atomic(self._path(id), manifest.to_toml().encode())
        return manifest

    def remove(self, id: str) -> RemovedModel:
        """Remove ``id`` (a broken manifest, too) and the weights that the store owns; other files stay.

        Raises ``InvalidModelId``, ``ModelNotFound``, ``StoreError``, ``StoreLocked``.
        """
        path = self._path(id)
        with self._lock():
            try:
                manifest = self.get(id)
            except ManifestError:
                manifest = None
            owned = self._weights / id
            freed = (
                sum(file.stat().st_size for file in owned.rglob("*") if file.is_file())
                if owned.is_dir()
                else 0
            )
            aside = temporary_name(path)
            with store_errors(f"model '{id}' could not be removed"):
                os.replace(path, aside)
                try:
                    sync_folder(self._manifests)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.replace(aside, path)
                    raise
            remove_file(aside)  # from here on the model is gone; what resists is removed at the next opening
            if owned.is_dir():
                remove_tree(owned)
        files = [] if manifest is None else [file.path for file in manifest.weight_files]
        if manifest is not None and manifest.tokenizer is not None:
            files.append(manifest.tokenizer)
        kept = tuple(file for file in files if not Path(file).is_relative_to(owned) and os.path.exists(file))
        return RemovedModel(id, manifest, freed, kept)

    def workspace(self) -> contextlib.AbstractContextManager[Path]:
        """An empty folder in the store for a download, removed afterwards. Raises ``StoreError``."""
        return workspace(self.root, self.lock_timeout)

    # Inside

    def _names(self) -> Sequence[str]:
        with store_errors(f"the store {str(self.root)!r} cannot be read"):
            names = os.listdir(self._manifests)
        return sorted(n[:-5] for n in names if n.endswith(".toml") and not n.startswith("."))

    def _path(self, id: str) -> Path:
        return self._manifests / f"{check_id(id)}.toml"

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return file_lock(self.root / ".lock", self.lock_timeout)

    def _not_found(self, id: str) -> ModelNotFound:
        near = difflib.get_close_matches(id, self.ids(), n=1)
        hint = (f"Did you mean '{near[0]}'? " if near else "") + _NOT_FOUND_HINT
        return ModelNotFound(f"no model '{id}' in the store {str(self.root)!r}", hint=hint, id=id)

    def _commit(self, manifest: ModelManifest, taken: Path | None) -> ModelManifest | None:
        """Write a manifest under the lock, moving owned weights in first; return the manifest it replaces."""
        id, path = manifest.id, self._path(manifest.id)
        folder = Path(manifest.weights).parent
        with self._lock():
            try:
                old = self.get(id)
            except ModelNotFound:
                old = None
            except ManifestError as error:
                if str(error.data.get("other")).lower() == id.lower():
                    raise  # another model: this file system takes 'A' and 'a' for one name
                old = None
            try:
                with store_errors(f"model '{id}' could not be registered"):
                    if taken is not None:
                        make_folder(folder)
                        sync_file(taken)
                        os.replace(taken, manifest.weights)
                        sync_folder(folder)
                    write_atomic(path, manifest.to_toml().encode())
            except BaseException:
                if taken is not None and (old is None or old.weights != manifest.weights):
                    remove_tree(folder)
                raise
            for orphan in orphans(self, id):
                remove_tree(orphan)
        return old
