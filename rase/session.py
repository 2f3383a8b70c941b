"""``ModelSession``: one loaded model; the only place that composes decoder, tokenizer, template, hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rase
from rase.device import DevicePreference, RuntimeDevice
from rase.errors import (
    IntegrityMismatch,
    InvalidRequest,
    ManifestError,
    UnsupportedFormat,
)  # fmt: skip
from rase.loading import LoadedProgram, Progress, close_with, load_program
from rase.session_cache import SessionCache

if TYPE_CHECKING:
    from rase.engine.decoder import ProgramDecoder
    from rase.registry.manifest import ModelManifest
    from rase.text.chat import ChatTemplate
    from rase.text.tokenizer import LocalTokenizer

__all__ = ["ModelSession", "SessionCache"]


class ModelSession:
    """A loaded model. Any number of threads may use it at once: their requests run together.

    ====================  ============================================================================
    ``id, manifest``      what was loaded; every file has the hash that the manifest states
    ``scheduler``         runs all requests of the model
    ``decoder``           a ``ProgramDecoder`` (prefill, decode, truncate) for one user at a time
    ``tokenizer``         the attached tokenizer.json, else the file's own
    ``eos_token``         the end token that the file declares, or None
    ``end_tokens``        all ids that end an answer: end of sequence, of turn, of message
    ``chat_template``     by the selection rule, or None: chat requests are refused
    ``context_length``    most tokens of prompt and answer together
    ``numerics_class``    how prompts are computed (design rule R5)
    ``fingerprint``       short name of all that decides the bits: files, template, class, version
    ``device``            the ``RuntimeDevice``
    ====================  ============================================================================
    """

    def __init__(
        self, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram,
        tokenizer: LocalTokenizer, chat_template: ChatTemplate | None,
    ) -> None:  # fmt: skip
        from rase.engine.decoder import ProgramDecoder
        from rase.engine.scheduler import Scheduler, limits_from_env

        self.id, self.manifest, self.device = manifest.id, manifest, device
        self.tokenizer, self.chat_template = tokenizer, chat_template
        self.eos_token: int | None = tokenizer.eos_id
        self.end_tokens: frozenset[int] = tokenizer.end_ids
        self.scheduler: Scheduler = Scheduler(
            loaded.program, loaded.pool, vocab_size=tokenizer.vocab_size, limits=limits_from_env(),
            name=f"model '{manifest.id}'")  # fmt: skip
        self.decoder: ProgramDecoder = ProgramDecoder(self.scheduler, self.eos_token)
        self.context_length: int = loaded.program.graph.context_length
        self.numerics_class: str = loaded.program.numerics_class
        graph = loaded.program.graph
        self.fingerprint: str = _fingerprint(
            manifest.sha256, manifest.tokenizer_sha256, graph.architecture, self.context_length,
            chat_template.name if chat_template else None, self.numerics_class, rase.__version__)  # fmt: skip
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()  # objects for which it stays loaded
        self.generations: weakref.WeakSet[Any] = weakref.WeakSet()  # each a ``Running`` that has an owner
        self.used_at = time.monotonic()  # when it was last handed out or a generation on it ended
        close_with(self.scheduler, loaded.program)

    @classmethod
    def load(
        cls,
        manifest: ModelManifest,
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> ModelSession:
        """Load the model that ``manifest`` describes; ``progress(done, total)`` counts bytes read.

        Raises ``UnsupportedFormat``, ``UnsupportedArchitecture``, ``ModelFileNotFound``,
        ``CorruptModelFile``, ``ManifestError`` (it contradicts its file), ``IntegrityMismatch``,
        ``TokenizerError``, ``ChatTemplateError``, ``BackendUnavailable``, ``InsufficientMemory``,
        ``Cancelled``.
        """
        from rase.registry.manifest import ModelFormat, ModelKind

        if manifest.format is not ModelFormat.GGUF and not manifest.files:
            raise UnsupportedFormat(
                f"model '{manifest.id}' cannot run", expected="a GGUF file, or a folder with its config.json",
                found="one safetensors file", hint="Register the folder that holds it.",
            )  # fmt: skip
        if manifest.kind is not ModelKind.GENERATOR:
            raise InvalidRequest(
                f"model '{manifest.id}' does not generate text", expected="a model of kind generator",
                found=manifest.kind.value, param="model")  # fmt: skip
        chosen = RuntimeDevice.select(device)
        loaded = load_program(
            manifest.weights, chosen, architecture=manifest.architecture,
            context_length=manifest.context_length, progress=progress, cancelled=cancelled)  # fmt: skip
        try:
            check_digests(manifest, loaded)
            return cls._compose(manifest, chosen, loaded)
        except BaseException:
            loaded.program.close()
            raise

    @classmethod
    def load_file(
        cls,
        path: str | os.PathLike[str],
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        architecture: str | None = None,
        context_length: int | None = None,
        chat_template: str | None = None,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> ModelSession:
        """Load a model without a store: the manifest is made of the hashes of what was read.

        Raises what ``load`` raises, but ``IntegrityMismatch``: nothing states what the hashes should be.
        """
        from rase.registry.inputs import path_text, tokenizer_bytes
        from rase.registry.manifest import ManifestFile, ModelFormat, ModelKind, ModelManifest, list_digest

        chosen = RuntimeDevice.select(device)
        loaded = load_program(
            path, chosen, architecture=architecture, context_length=context_length, progress=progress,
            cancelled=cancelled)  # fmt: skip
        try:
            paths = [os.path.abspath(shard) for shard in loaded.paths]
            files = tuple(
                ManifestFile(shard, size, digest)  # by now the file may be gone
                for shard, size, digest in zip(paths, loaded.sizes, loaded.digests, strict=True))  # fmt: skip
            several = len(files) > 1
            manifest = ModelManifest(
                id=_id_of(Path(loaded.location)), kind=ModelKind.GENERATOR, format=ModelFormat(loaded.format),
                weights=loaded.location,
                sha256=list_digest(files, os.path.dirname(paths[0])) if several else files[0].sha256,
                architecture=architecture, context_length=context_length, chat_template=chat_template,
                files=files if several else (),
            )  # fmt: skip
            if tokenizer is not None:
                location = os.path.abspath(path_text(tokenizer, "tokenizer"))
                digest = hashlib.sha256(tokenizer_bytes(location)).hexdigest()
                manifest = replace(manifest, tokenizer=location, tokenizer_sha256=digest)
            return cls._compose(manifest, chosen, loaded)
        except BaseException:
            loaded.program.close()
            raise

    @classmethod
    def _compose(cls, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram) -> ModelSession:
        from rase.text.select import choose_template

        tokenizer = _tokenizer(manifest, loaded)
        rows = loaded.program.graph.vocab_size
        if tokenizer.vocab_size > rows:
            raise ManifestError(
                f"the tokenizer of model '{manifest.id}'", expected=f"at most {rows} tokens",
                found=tokenizer.vocab_size, hint="Attach the tokenizer.json of this model.")  # fmt: skip
        template = choose_template(manifest.chat_template, loaded.metadata, loaded.architecture.chat_template)
        return cls(manifest, device, loaded, tokenizer, template)

    @property
    def active(self) -> int:
        """Number of generations that wait, run, or are being read."""
        return sum(generation.active for generation in list(self.generations))

    def __repr__(self) -> str:
        return f"<ModelSession {self.id} on {self.device.name}, {self.fingerprint}>"


def _fingerprint(*facts: object) -> str:
    """Short name of the facts that decide the bits of an answer: no path, no id, equal on every machine."""
    return "fp_" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


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


def _tokenizer(manifest: ModelManifest, loaded: LoadedProgram) -> LocalTokenizer:
    from rase.registry.inputs import tokenizer_bytes
    from rase.text.tokenizer import LocalTokenizer

    if manifest.tokenizer is None and loaded.tokenizer_json is not None:
        return LocalTokenizer.from_json(loaded.tokenizer_json).with_metadata(loaded.metadata)
    if manifest.tokenizer is None:
        return LocalTokenizer.from_gguf(loaded.metadata)
    data = tokenizer_bytes(manifest.tokenizer)
    digest = hashlib.sha256(data).hexdigest()
    if manifest.tokenizer_sha256 != digest:
        raise IntegrityMismatch(manifest.id, str(manifest.tokenizer_sha256), digest, path=manifest.tokenizer)
    return LocalTokenizer.from_json(data).with_metadata(loaded.metadata)


def _id_of(path: Path) -> str:
    """A model id for a file that is in no store: its name, with what an id may not hold replaced."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)
    return (name.lstrip("._-") or "model")[:128]
