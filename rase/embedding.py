"""``EmbeddingSession``: one loaded embedding model, from texts to vectors of length 1."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rase.device import DevicePreference, RuntimeDevice
from rase.errors import ContextLengthExceeded, InvalidRequest
from rase.loaded import check_digests, check_runs, fingerprint, tokenizer_of
from rase.loading import LoadedProgram, Progress, close_with, load_program

if TYPE_CHECKING:
    import numpy as np

    from rase.registry.manifest import ModelManifest
    from rase.text.tokenizer import LocalTokenizer

__all__ = ["EmbeddingSession", "Embeddings"]

MAX_TEXTS = 2048  # of one request


@dataclass(frozen=True)
class Embeddings:
    """``vectors`` float32 ``(texts, dim)``, each of length 1; ``prompt_tokens`` of all texts together."""

    vectors: np.ndarray[Any, np.dtype[np.float32]]
    prompt_tokens: int
    model: str
    fingerprint: str


class EmbeddingSession:
    """A loaded embedding model. Threads may use it at once: their texts wait for each other.

    ``id, manifest, device, tokenizer, context_length, numerics_class, fingerprint`` are those of a
    ``ModelSession``; ``dim`` is the length of a vector before it is cut, ``pooling`` mean, cls or last.
    """

    def __init__(
        self, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram, tokenizer: LocalTokenizer
    ) -> None:
        import rase
        from rase.engine.embedder import Embedder
        from rase.models import pooling

        self.id, self.manifest, self.device, self.tokenizer = manifest.id, manifest, device, tokenizer
        graph = loaded.program.graph
        self.pooling = pooling(loaded.metadata)
        self._embedder = Embedder(loaded.program, loaded.pool, self.pooling)
        self.dim, self.context_length = self._embedder.dim, self._embedder.longest
        self.numerics_class: str = loaded.program.numerics_class
        self.fingerprint: str = fingerprint(
            manifest.sha256, manifest.tokenizer_sha256, graph.architecture, self.context_length, self.pooling,
            self.numerics_class, rase.__version__)  # fmt: skip
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()  # objects for which it stays loaded
        self.used_at = time.monotonic()  # when it was last handed out or used
        self.active = 0  # requests that wait or run
        self._counting, self._turn = threading.Lock(), threading.Lock()
        close_with(self._embedder, loaded.program)

    @classmethod
    def load(
        cls,
        manifest: ModelManifest,
        device: DevicePreference | RuntimeDevice | str = DevicePreference.Auto,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> EmbeddingSession:
        """Load the embedding model that ``manifest`` describes. Raises what ``ModelSession.load`` does."""
        from rase.registry.manifest import ModelKind

        check_runs(manifest, ModelKind.EMBEDDING)
        chosen = RuntimeDevice.select(device)
        loaded = load_program(
            manifest.weights, chosen, architecture=manifest.architecture, kind="embedding",
            context_length=manifest.context_length, progress=progress, cancelled=cancelled)  # fmt: skip
        try:
            check_digests(manifest, loaded)
            return cls.compose(manifest, chosen, loaded)
        except BaseException:
            loaded.program.close()
            raise

    @classmethod
    def compose(
        cls, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram
    ) -> EmbeddingSession:
        """A session of what has been loaded and checked."""
        return cls(manifest, device, loaded, tokenizer_of(manifest, loaded))

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Embeddings:
        """One vector for each text (or list of token ids); ``dimensions`` keeps the first elements.

        A text is data: it is put between the tokens that the model expects around it, and can spell none of
        them. Everything that can be refused is refused before anything is computed: ``InvalidRequest``,
        ``ContextLengthExceeded``, ``InsufficientMemory``. Also raises ``Cancelled``.
        """
        texts = _texts(texts)
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= self.dim):
            raise InvalidRequest(
                "dimensions", expected=f"a whole number from 1 to {self.dim}", found=f"{dimensions!r:.60}",
                param="dimensions")  # fmt: skip
        ids = [self._ids(text, f"input[{place}]") for place, text in enumerate(texts)]
        with self._counting:
            self.active += 1
        try:
            with self._turn:
                vectors = self._embedder.embed(ids, dimensions, cancelled)
        finally:
            with self._counting:
                self.active -= 1
            self.used_at = time.monotonic()
        return Embeddings(vectors, sum(map(len, ids)), self.id, self.fingerprint)

    def _ids(self, text: str | Sequence[int], param: str) -> list[int]:
        if isinstance(text, str):
            # Encoding megabytes takes seconds: what cannot fit is refused before.
            least = self.tokenizer.least_tokens(text) if len(text) > self.context_length else 0
            if least > self.context_length:
                raise ContextLengthExceeded(least, self.context_length, param=param, at_least=True)
            ids = self.tokenizer.encode(text, parse_special=False)
        elif all(type(id) is int for id in text):
            ids = list(text)
        else:
            raise InvalidRequest("an input", expected="text or token ids", found=f"{text!r:.60}", param=param)
        self._embedder.check(ids, param)
        return ids

    def __repr__(self) -> str:
        return f"<EmbeddingSession {self.id} on {self.device.name}, {self.fingerprint}>"


def _texts(value: Any) -> list[Any]:
    """The texts of a request: a string or a list of numbers is one of them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        return [list(value)]
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(item, (str, list, tuple)) for item in value
    ):
        found = f"{value!r:.60}"
        raise InvalidRequest("input", expected="a text, or a list of texts or of token ids", found=found,
                             param="input")  # fmt: skip
    if not 1 <= len(value) <= MAX_TEXTS:
        raise InvalidRequest("input", expected=f"1 to {MAX_TEXTS} texts", found=len(value), param="input")
    return list(value)
