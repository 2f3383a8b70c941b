"""API keys: several, from the environment and a file; kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from pathlib import Path

from rase import env
from rase.errors import InvalidSetting
from rase.settings import SETTINGS

__all__ = ["Keys", "keys_of_settings"]

MAX_FILE = 1 << 20  # bytes


class Keys:
    """The keys of a server. Empty: none is asked for."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, headers: Mapping[str, str]) -> bool:
        """Whether one of the headers that clients send a key in holds one of ours.

        All keys are compared, whole, whatever matches: how long it takes tells nothing of them.
        """
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else ""
        found = False
        for value in (given, headers.get("x-api-key", ""), headers.get("api-key", "")):
            digest = _digest(value)
            for known in self._digests:
                found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def keys_of_settings() -> tuple[str, ...]:
    """The keys of RASE_API_KEY, and those of the file that RASE_API_KEY_FILE names.

    Of the file every line is a key, but for blank ones and those that begin with ``#``. Raises
    ``InvalidSetting``, which names the line and never shows it.
    """
    keys = list(env.get("RASE_API_KEY"))
    if name := env.get("RASE_API_KEY_FILE"):
        setting = SETTINGS["RASE_API_KEY"]
        try:
            with Path(name).expanduser().open(encoding="utf-8") as file:
                lines = file.read(MAX_FILE).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            found = getattr(error, "strerror", None) or "bytes that are not UTF-8"
            raise InvalidSetting(f"the file of API keys {name}", found=found) from None
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            try:
                (key,) = setting.parse(text)
            except ValueError:
                raise InvalidSetting(
                    f"the file of API keys {name}, line {number}",
                    expected="a key of at least 8 visible ASCII characters, without commas",
                    found="something else, which is not shown",
                ) from None
            keys.append(key)
        if not keys:
            raise InvalidSetting(f"the file of API keys {name}", expected="a key in each line", found="none")
    return tuple(keys)
