"""Accepts the batches of decoding: the check of backends/check.py for every step of plain decoding."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def accepts_decode(
    ids: NDArray[np.int32],
    positions: NDArray[np.int32],
    sequences: NDArray[np.int32],
    tables: NDArray[np.int32],
    roles: NDArray[np.uint8],
    logits_rows: NDArray[np.int32],
    vocab_size: int,
    context_length: int,
    reserved_pages: Sequence[int],
    page_tokens: int,
    windows: Sequence[int],
) -> bool:
    """Whether a batch keeps every rule of ``Batch`` and adds one token to each of its sequences, in ascending
    order of their rows; several must be generated tokens. False for every other batch, too.

    ``windows`` says how far each cache group looks back, 0 for the start. Raises ``ValueError`` for arrays of
    another dtype, dimension or order.
    """
