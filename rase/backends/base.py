"""What every backend provides: Backend compiles a graph into a Program, a Program runs batches.

Importing this module loads no NumPy and no kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rase.backends._states import States
from rase.backends.check import check_batch
from rase.errors import InvalidSetting
from rase.graph.ops import Graph

if TYPE_CHECKING:
    import numpy as np

    from rase._kernels.sampler import Row
    from rase.backends.limits import Limits
    from rase.gguf.formats import TensorInfo

__all__ = [
    "GENERATED", "PAGE_TOKENS", "PROMPT", "STATE_PAGES", "Backend", "Batch", "CompileOptions",
    "MemoryEstimate", "Program", "WeightSource", "most_pages",
]  # fmt: skip

GENERATED, PROMPT = 0, 1  # roles; generated tokens precede prompt tokens, so roles of a batch never descend
PAGE_TOKENS = 32
STATE_PAGES = (
    3  # of a state group that a sequence holds at one time: it stands in one and writes the last two
)


@dataclass
class Batch:
    """The tokens of one step: n tokens of s sequences, m of them with logits.

    Rules, validated by ``check``: generated tokens come before prompt tokens; tokens of one sequence and role
    are contiguous, with ascending positions; a page that is written belongs to one sequence only. Page ids of
    different cache groups have nothing to do with each other. Where tokens see what follows them
    (``graph.whole_input``), every sequence is whole: its positions are 0, 1, 2 and so on.
    """

    ids: np.ndarray  # int32 (n,)
    positions: np.ndarray  # int32 (k, n); row 0 is the place in the sequence; k > 1 for multi-axis rope
    sequences: np.ndarray  # int32 (n,) row of each table
    page_tables: np.ndarray  # int32 (g, s, pages): per cache group, page ids in order of position, -1 = none
    roles: np.ndarray  # uint8 (n,) GENERATED or PROMPT
    logits_rows: np.ndarray  # int32 (m,) the tokens whose output is wanted; m may be 0

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        start: int,
        pages: Sequence[int],
        role: int,
        logits_rows: Sequence[int] | None = None,
        groups: int = 1,
    ) -> Batch:
        """Tokens of one sequence from position ``start`` on; by default the last one wants logits.

        Every cache group gets the same page ids.
        """
        import numpy as np

        n = len(ids)
        return cls(
            ids=np.asarray(ids, np.int32),
            positions=np.arange(start, start + n, dtype=np.int32).reshape(1, n),
            sequences=np.zeros(n, np.int32),
            page_tables=np.tile(np.asarray(pages, np.int32), (groups, 1, 1)),
            roles=np.full(n, role, np.uint8),
            logits_rows=np.asarray([n - 1] if logits_rows is None else logits_rows, np.int32),
        )

    def check(self, program: Program) -> None:
        """Raise unless ``program`` can run this batch, before anything is computed or written.

        ``InvalidRequest`` for an id outside the vocabulary, ``ContextLengthExceeded`` for a position outside
        the context; ``BackendError`` for a broken rule of the class docstring or a page that is absent.
        """
        check_batch(self, program)


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. ``threads`` None means the backend's own rule; the rest is design rules R3 to R5.

    ``kv`` is how pages hold K and V: float16, or ``"q8_0"``, blocks of 32 int8 with one float16 scale, in
    34/64 of the memory. A backend that has no such pages raises ``BackendUnavailable``.
    """

    threads: int | None = None
    prefill: Literal["auto", "int8", "f32", "bf16"] = "auto"
    numerics: Literal["fast", "portable"] = "fast"
    max_batch_tokens: int = 512
    kv: str = "f16"

    def __post_init__(self) -> None:
        for name, count in (("threads", self.threads), ("max_batch_tokens", self.max_batch_tokens)):
            if count is not None and count < 1:
                raise InvalidSetting(name, expected="at least 1", found=str(count))
        for name, word, known in (
            ("prefill", self.prefill, ("auto", "int8", "f32", "bf16")),
            ("numerics", self.numerics, ("fast", "portable")),
            ("kv", self.kv, ("f16", "q8_0")),
        ):
            if word not in known:
                raise InvalidSetting(name, expected="one of " + ", ".join(known), found=repr(word))
        if self.numerics == "portable" and self.prefill in ("f32", "bf16"):
            raise InvalidSetting(
                f"prefill '{self.prefill}' in the portable class",
                expected="'auto' or 'int8'",
                found=repr(self.prefill),
                hint="Unset RASE_PREFILL, or set RASE_NUMERICS=fast.",
            )


def most_pages(graph: Graph) -> tuple[int | None, ...]:
    """``MemoryEstimate.most`` of a graph: states are few pages, however long a sequence is."""
    return tuple(STATE_PAGES if group.kind == "state" else None for group in graph.caches)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a program will hold: weights and scratch at once, ``pages[g]`` a page of cache group g.

    ``most[g]`` are the most pages of group g that one sequence holds at one time, None as many as its length
    takes. ``grain`` and ``threads`` are what ``compile`` will ask of the weight source: bytes that it must
    get in one piece, at most, and the threads that it uses.
    """

    weights: int
    pages: tuple[int, ...]
    scratch: int
    page_tokens: int = PAGE_TOKENS
    grain: int = 1
    threads: int = 1
    most: tuple[int | None, ...] = ()

    @property
    def page(self) -> int:
        """Bytes of one page in every cache group."""
        return sum(self.pages)

    def total(self, tokens: int) -> int:
        """Bytes with one sequence of ``tokens`` positions in the cache."""
        whole = -(-tokens // self.page_tokens)
        most = self.most or (None,) * len(self.pages)
        counts = [whole if bound is None else min(whole, bound) for bound in most]
        cache = sum(count * size for count, size in zip(counts, self.pages, strict=True))
        return self.weights + self.scratch + cache


class WeightSource(Protocol):
    """Where a backend reads weights from, in slices; a source that hashes does so as it delivers."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def deliver(
        self,
        grains: Mapping[str, int],
        take: Callable[[TensorInfo, int, memoryview], object],
        threads: int = 1,
    ) -> None:
        """Call ``take(info, start, data)`` for slices that make up each tensor named in ``grains``.

        A slice begins at a multiple of ``grains[name]`` bytes of its tensor, and only the last one ends
        elsewhere: a grain of ``info.nbytes`` brings the tensor whole. ``data`` is read-only and valid until
        ``take`` returns. Calls come in file order with one thread, in any order and at once with several.
        """


class Program(ABC):
    """A compiled model with its KV cache, for one caller at a time.

    The cache is pages of ``page_tokens`` positions; each cache group of the graph has page ids of its own,
    and ``page_bytes[g]`` are one page's bytes over all layers of group g. Who owns which page is the caller's
    business: a page id in a batch's page table is all that a program knows of it.

    ``one_arithmetic`` says that prompt and generated tokens are computed alike, so that the KV of one role is
    the KV of the other (rule R4).
    """

    graph: Graph
    numerics_class: str
    page_tokens: int = PAGE_TOKENS
    page_bytes: tuple[int, ...]
    max_batch_tokens: int
    reserved_pages: tuple[int, ...]
    one_arithmetic: bool = False
    page_layout: str = ""  # what decides where in a page a value stands, where the class alone does not
    states: States | None = None  # where the states of recurrent layers stand

    @abstractmethod
    def reserve_pages(self, n: int, group: int | None = None) -> None:
        """Provide storage for page ids 0 to n - 1 of one cache group, or of all; keeps what is stored.

        Never shrinks. Raises ``InsufficientMemory``.
        """

    @abstractmethod
    def copy_page(self, group: int, source: int, target: int) -> None:
        """Make the reserved page ``target`` of ``group`` equal to ``source``, byte for byte."""

    @abstractmethod
    def save_page(self, group: int, page: int) -> bytes:
        """What the reserved page ``page`` of ``group`` holds, for ``restore_page`` of a program with the same
        class, layout, graph and weights.
        """

    @abstractmethod
    def restore_page(self, group: int, page: int, data: bytes, tokens: int) -> None:
        """Make the reserved page ``page`` of ``group`` hold ``data``, with which ``tokens`` positions
        of a sequence end. Raises ``ValueError`` for data of another size.
        """

    @abstractmethod
    def run(self, batch: Batch) -> np.ndarray:
        """The graph's output, float32 ``(m, graph.output.dim)``, in order of ``logits_rows``: logits, or the
        hidden rows of an embedding model. Checks the batch first.

        K and V of every token of the batch are stored, also of those without logits.
        """

    def peaks_of(self, rows: np.ndarray) -> np.ndarray | None:
        """What a sampler would look for first in ``rows``, the very array that ``run`` gave last, where that
        is known already: float32 ``(m, 16 * (dim // 256))``, for each whole block of 256 logits of a row, in
        16 lanes, the largest of every 16th logit, NaN where one of them is not finite.
        """
        return None

    def each_of(self, rows: np.ndarray) -> list[Row]:
        """``rows`` one by one with their ``peaks_of``, as a sampler takes them."""
        from rase._kernels.sampler import Row

        return Row.all_of(rows, self.peaks_of(rows))

    @abstractmethod
    def close(self) -> None:
        """Free weights and pages; running afterwards raises ``BackendError``. Closing twice is fine."""

    def limits(self, buffer_bytes: int = 2 << 30) -> Limits | None:
        """Measure what the machine can do at most with this program's threads; None where that is unknown.

        Reads a buffer of ``buffer_bytes`` for the memory's share of it. Runs no batch.
        """
        return None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Backend(ABC):
    """A way to run graphs. A module of this package, or an entry point, names its class as ``BACKEND``."""

    name: str
    numerics: tuple[str, ...] = ("fast", "portable")  # the classes that it has
    parallel = False  # whether RASE_TENSOR_PARALLEL_SIZE means anything to it

    def on(self, device: str) -> Backend:
        """This backend for another device that it drives, by the names of ``DevicePreference``."""
        return self

    def free_memory(self) -> int | None:
        """Bytes that its device has free for weights and pages; None where that is this machine's memory."""
        return None

    def offload_status(self) -> str:
        """Of one that offloads: ``active: <adapter>``, ``fallback(runtime-failure)`` or ``inactive``."""
        return "inactive"

    @abstractmethod
    def available(self) -> tuple[bool, str]:
        """Whether this machine can run it, and why not, or with what (device, instruction set)."""

    @abstractmethod
    def estimate(
        self, graph: Graph, tensors: Mapping[str, TensorInfo], options: CompileOptions
    ) -> MemoryEstimate:
        """Memory that ``compile`` would take, from metadata alone.

        Raises ``UnsupportedFormat`` or ``UnsupportedArchitecture`` for what this backend does not run.
        """

    @abstractmethod
    def compile(self, graph: Graph, weights: WeightSource, options: CompileOptions) -> Program:
        """Read every weight once; a new program. Raises what ``estimate`` does, and the source's errors."""
