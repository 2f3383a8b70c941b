"""TokenStream: token ids in, whole characters out, in constant time per token."""

from __future__ import annotations

import codecs

from rase.text.vocabulary import Vocabulary

__all__ = ["TokenStream"]

_Utf8 = codecs.getincrementaldecoder("utf-8")


class TokenStream:
    """Turns the ids of one answer into text as they come.

    The joined results of ``push`` and the final ``flush`` equal ``LocalTokenizer.decode`` of the same ids:
    both are this class. Half a character is held back until it is complete; bytes that can never become a
    character give U+FFFD (one per maximal ill-formed part, Unicode 15 section 3.9). With ``strip_blank`` the
    one blank that a SentencePiece vocabulary puts before its first word is dropped, once, at the start.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True, strip_blank: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        self._strip = strip_blank
        self._utf8 = _Utf8("replace")

    def push(self, token: int) -> str:
        """Return the characters that ``token`` completes, possibly none.

        Raises ``InvalidRequest`` for an id outside the vocabulary.
        """
        self._vocabulary.check(token)
        if self._skip and self._vocabulary.is_control(token):
            return ""
        return self._strip_start(self._utf8.decode(self._vocabulary.pieces[token]))

    def flush(self) -> str:
        """End the answer: a character that stayed incomplete becomes U+FFFD."""
        return self._strip_start(self._utf8.decode(b"", final=True))

    def _strip_start(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
