"""``Session``: what a loaded model is, whatever it makes; the one way from a manifest to it."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import rase
from rase.device import DevicePreference, RuntimeDevice
from rase.loaded import check_digests, check_runs, fingerprint
from rase.loading import Kind, LoadedProgram, Progress, load_program

if TYPE_CHECKING:
    from rase.registry.manifest import ModelManifest
    from rase.text.tokenizer import LocalTokenizer

__all__ = ["Session"]


class Session(ABC):
    """A loaded model of one ``kind``, and all that a ``SessionCache`` needs of it.

    ====================  ============================================================================
    ``id, manifest``      what was loaded; every file has the hash that the manifest states
    ``device``            the ``RuntimeDevice``
    ``tokenizer``         the attached tokenizer.json, else the file's own
    ``context_length``    most tokens of one input, answer included
    ``numerics_class``    how prompts are computed (design rule R5)
    ``fingerprint``       short name of all that decides the bits: files, ``variant``, class, version
    ``holders``           the objects for which it stays loaded
    ``used_at``           when it was last handed out or used, by the monotonic clock
    ``active``            requests that wait or run
    ====================  ============================================================================
    """

    kind: ClassVar[Kind]

    def __init__(
        self, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram,
        tokenizer: LocalTokenizer, *, context_length: int, variant: str | None,
    ) -> None:  # fmt: skip
        program = loaded.program
        self.id, self.manifest, self.device = manifest.id, manifest, device
        self.tokenizer, self.context_length = tokenizer, context_length
        self._named, self._facts = program, (
            manifest.sha256, manifest.tokenizer_sha256, program.graph.architecture, context_length, variant,
        )  # fmt: skip
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.used_at = time.monotonic()

    @property
    def numerics_class(self) -> str:
        return self._named.numerics_class  # another one after a device was lost

    @property
    def fingerprint(self) -> str:
        return fingerprint(*self._facts, self.numerics_class, rase.__version__)

    @property
    @abstractmethod
    def active(self) -> int: ...

    @classmethod
    def load(
        cls,
        manifest: ModelManifest,
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
        kv: str | None = None,
    ) -> Self:
        """Load the model that ``manifest`` describes; ``progress(done, total)`` counts bytes read.

        ``kv`` is how its KV cache holds keys and values, ``"f16"`` or ``"q8_0"``; None what RASE_KV says.

        Raises ``UnsupportedFormat``, ``UnsupportedArchitecture``, ``ModelFileNotFound``,
        ``CorruptModelFile``, ``ManifestError`` (it contradicts its file), ``IntegrityMismatch``,
        ``TokenizerError``, ``ChatTemplateError``, ``BackendUnavailable``, ``InsufficientMemory``,
        ``Cancelled``, ``InvalidSetting`` for another ``kv``, and ``InvalidRequest`` for a model of another
        kind.
        """
        from rase.registry.manifest import ModelKind

        check_runs(manifest, ModelKind(cls.kind))
        chosen = RuntimeDevice.select(device)
        loaded = load_program(
            manifest.weights, chosen, architecture=manifest.architecture, kind=cls.kind,
            context_length=manifest.context_length, kv=kv, progress=progress,
            cancelled=cancelled)  # fmt: skip
        try:
            check_digests(manifest, loaded)
            return cls.compose(manifest, chosen, loaded)
        except BaseException:
            loaded.program.close()
            raise

    @classmethod
    @abstractmethod
    def compose(cls, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram) -> Self:
        """A session of what has been loaded and checked."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self.device.name}, {self.fingerprint}>"
