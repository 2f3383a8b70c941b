"""What small random models share, whatever they are: seeded weights, and the way from them to a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from rase.backends.base import Backend, CompileOptions, Program
from rase.graph.ops import Graph
from rase.models import build
from rase.testing.blocks import random_blocks
from rase.testing.weights import MemoryWeights


class RandomModel(ABC):
    """Base of dataclasses with ``architecture`` and ``vocab``: what a GGUF file of one would say and hold."""

    kind: ClassVar[Literal["generator", "embedding"]] = "generator"
    compiled: ClassVar[dict[str, Any]] = {}  # options of its programs
    architecture: str
    vocab: int

    @property
    @abstractmethod
    def metadata(self) -> dict[str, Any]: ...

    @property
    @abstractmethod
    def source(self) -> MemoryWeights:
        """The weights, as a backend reads them."""

    def but(self, **changes: Any) -> Self:
        """The same model with other values."""
        return replace(self, **changes)  # type: ignore[type-var]

    def said(self, own: dict[str, Any]) -> dict[str, Any]:
        """Metadata under the names of files; what is None is not said."""
        keys = {f"{self.architecture}.{name}": value for name, value in own.items() if value is not None}
        return {"general.architecture": self.architecture, **keys}

    def graph(self, **arguments: Any) -> Graph:
        """What ``rase.models`` makes of the metadata and the shapes."""
        return build(self.metadata, self.source.tensors, **{"kind": self.kind, **arguments})

    def compile(self, backend: Backend, **options: Any) -> Program:
        """A program with 64 pages reserved."""
        program = backend.compile(self.graph(), self.source, CompileOptions(**self.compiled | options))
        program.reserve_pages(64)
        return program

    def ids(self, n: int, seed: int = 7) -> list[int]:
        """n random token ids."""
        return [int(id) for id in np.random.default_rng(seed).integers(0, self.vocab, n)]


class Drawn:
    """Weights that are drawn one after the other: ``tensors`` is what ``MemoryWeights`` takes."""

    def __init__(self, seed: int, matrices: str, std: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: dict[str, Any] = {}
        self._matrices, self._std = matrices, std

    def matrix(self, name: str, *shape: int, bias: bool = False) -> None:
        blocks = random_blocks(self._matrices, shape, self.rng, self._std)
        self.tensors[f"{name}.weight"] = (blocks, shape, self._matrices)
        if bias:
            self.bias(name, shape[0])

    def norm(self, name: str, size: int) -> None:
        self.tensors[f"{name}.weight"] = self.rng.uniform(0.5, 1.5, size).astype(np.float32)

    def bias(self, name: str, size: int) -> None:
        self.tensors[f"{name}.bias"] = self.rng.normal(0, 0.3, size).astype(np.float32)
