"""Calls into the `tokenizers` library, whose failures become typed errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rase.errors import TokenizerError

__all__ = ["call", "encoder"]

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


def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """The function that turns a text into ids with ``tokenizer``; raises ``TokenizerError``.

    It uses the library's call for many texts: the one for a single text keeps the GIL, seconds for a long
    prompt, and computes offsets that nobody needs.
    """

    def encode(text: str) -> list[int]:
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids  # type: ignore[no-any-return]

    return lambda text: call("the tokenizer failed on this text", lambda: encode(text))
