"""Calls into the `tokenizers` library, whose failures become typed errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rase.errors import TokenizerError

__all__ = ["call"]

T = TypeVar("T")


def call(what: str, function: Callable[[], T]) -> T:
    """Return ``function()``; raises ``TokenizerError`` saying ``what`` for any failure of the library.

    The library raises plain ``Exception``, and for its own bugs a ``PanicException`` that is none.
    """
    try:
        return function()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = str(error)
        raise TokenizerError(what, found=text if len(text) <= 200 else text[:200] + "…") from None
