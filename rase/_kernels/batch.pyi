"""What goes into a pass and what comes out of it: arrays, the check of plain decoding, rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rase._kernels.sampler import Row
from rase.backends.base import Batch

class BatchView:
    """The arrays of a batch for compiled code, taken once. Numbers in them may change, the arrays may not.

    Raises ``ValueError`` for arrays of another dtype, dimension or order than ``Batch`` has.
    """

    tokens: int
    generated: int  # tokens of that role
    outputs: int  # tokens whose output is wanted
    last_position: int

    def __init__(self, batch: Batch) -> None: ...
    def shows(self, batch: Batch) -> bool:
        """Whether ``batch`` has these arrays."""

    def put(self, row: int, id: int, position: int) -> None:
        """Make token ``row`` another one; only for whoever made the arrays. Raises ``IndexError``."""

def view_of(batch: Batch, last: BatchView | None = None) -> BatchView:
    """``last`` where it shows ``batch``, else a new view. Raises ``ValueError``, see ``BatchView``."""

class Output:
    """Memory for what a program returns, used again as soon as nobody holds any of it.

    Logits of a step are megabytes. Fresh memory of that size comes page by page from the system, which clears
    each one: longer than a sampler takes to read them. For one caller at a time; what it hands out may be
    dropped in any thread. A finalizer would say so as well, but one that Ctrl-C strikes in swallows it.
    """

    rows: NDArray[np.float32]  # (m, columns); whatever numbers until a program has run
    peaks: NDArray[np.float32]  # (m, 16 * blocks)
    nbytes: int

    def __init__(self, capacity: int, columns: int, blocks: int) -> None: ...
    def fit(self, rows: int) -> bool:
        """Have ``rows`` rows from now on, whatever is in them; False where they do not fit or somebody holds
        an array or a view of one.
        """

    def each(self) -> list[Row]:
        """``rows`` and ``peaks`` one by one, as a sampler takes them."""

class DecodeRules:
    """The rules of ``Batch`` for steps in which every sequence adds one token.

    ``windows`` says how far each cache group looks back, 0 for the start; ``max_tokens`` are those of a step.
    """

    def __init__(
        self, vocab_size: int, context_length: int, page_tokens: int, max_tokens: int, windows: Sequence[int]
    ) -> None: ...
    def accept(self, batch: BatchView, reserved_pages: tuple[int, ...]) -> bool:
        """Whether a batch keeps every rule and adds one token to each of its sequences, in ascending order of
        their rows; several must be generated tokens. False for every other batch, too.
        """
