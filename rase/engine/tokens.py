"""Token ids that come from outside: checked once, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rase.errors import InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_ids", "outside"]


def check_ids(ids: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    """Return ``ids`` as int32 ``(n,)``.

    Raises ``InvalidRequest`` when there are none, when one is not a whole number or is outside
    0..vocab_size-1.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or array.size == 0:
        raise InvalidRequest(
            "the prompt is empty" if array.ndim == 1 else "the prompt is not a list of token ids",
            expected="at least one token id",
            hint="Send some text, or a beginning-of-text token.",
            param="prompt",
        )
    if array.dtype.kind not in "iu":
        raise InvalidRequest(
            "the prompt is not a list of token ids", found=f"values of type {array.dtype}", param="prompt"
        )
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size))
    if wrong.size:
        raise outside(int(array[wrong[0]]), vocab_size)
    return array.astype(np.int32)


def outside(id: int, vocab_size: int) -> InvalidRequest:
    """The error for an id that is not 0 to vocab_size - 1."""
    return InvalidRequest(
        "a token id outside the vocabulary", expected=f"0 to {vocab_size - 1}", found=id, param="prompt"
    )
