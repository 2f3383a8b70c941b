"""``ModelFile``: what graph, loader, converter and card ask of an open model, whatever format it is in.

Every format speaks GGUF's words: metadata keys, tensor names and layouts are those that a GGUF file of the
model would have. A new format is a reader that gives this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from rase.gguf.formats import TensorInfo
    from rase.gguf.pipeline import Take
    from rase.gguf.reader import Shard

__all__ = ["HashedSource", "ModelFile", "StoredTensors"]


class StoredTensors(Protocol):
    """Files and what lies in them; ``shard`` and ``offset`` of each tensor say where."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def shards(self) -> tuple[Shard, ...]: ...


class HashedSource(Protocol):
    """A weight source (``rase.backends.base.WeightSource``) that hashes every byte as it delivers."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each shard in hex, once ``deliver`` has ended."""

    def deliver(self, grains: Mapping[str, int], take: Take, threads: int = 1) -> None: ...


class ModelFile(StoredTensors, Protocol):
    """An open model. Use it as a context manager.

    ``metadata`` and ``types`` are those of ``GgufFile``. ``shards`` are all files that make the model, in the
    order of the manifest. ``tensors`` are those that a graph reads: their ``offset`` means something to
    this object only.
    """

    format: str  # "gguf" or "safetensors", as a manifest calls it
    location: str  # absolute: the first file, or the folder of the files
    metadata: dict[str, Any]
    types: dict[str, str]
    tokenizer_json: bytes | None  # a tokenizer.json that is part of the model
    alignment: int  # of tensor data in a GGUF file of this model
    working_bytes: int  # memory that delivering takes beside the buffers that are hashed

    def source(
        self,
        progress: Callable[[int, int], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> HashedSource:
        """One pass over all files; ``progress`` and ``cancelled`` as ``HashedTensors`` takes them."""

    def rows(self, info: TensorInfo, size: int) -> Iterator[bytes]:
        """The bytes of one tensor in order, in pieces of whole rows and about ``size`` bytes.

        Raises ``CorruptModelFile`` when a file has shrunk since it was opened.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
