"""``EmbeddingSession``: one loaded embedding model, from texts to vectors of length 1."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rase.device import RuntimeDevice
from rase.errors import ContextLengthExceeded, InvalidRequest
from rase.loaded import tokenizer_of
from rase.loading import LoadedProgram, close_with
from rase.session_base import Session

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


class EmbeddingSession(Session):
    """A loaded embedding model. Threads may use it at once: their texts wait for each other.

    Besides what every ``Session`` has, ``dim`` is the length of a vector before it is cut, and ``pooling``
    mean, cls or last. ``context_length`` bounds one text.
    """

    kind = "embedding"

    def __init__(
        self, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram, tokenizer: LocalTokenizer
    ) -> None:
        from rase.engine.embedder import Embedder
        from rase.models import pooling

        self.pooling = pooling(loaded.metadata)
        self._embedder = Embedder(loaded.program, loaded.pool, self.pooling)
        super().__init__(
            manifest, device, loaded, tokenizer, context_length=self._embedder.longest, variant=self.pooling
        )
        self.dim = self._embedder.dim
        self._active = 0
        self._counting, self._turn = threading.Lock(), threading.Lock()
        close_with(self._embedder, loaded.program)

    @classmethod
    def compose(cls, manifest: ModelManifest, device: RuntimeDevice, loaded: LoadedProgram) -> Self:
        return cls(manifest, device, loaded, tokenizer_of(manifest, loaded))

    @property
    def active(self) -> int:
        return self._active

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
            self._active += 1
        try:
            with self._turn:
                vectors = self._embedder.embed(ids, dimensions, cancelled)
        finally:
            with self._counting:
                self._active -= 1
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
