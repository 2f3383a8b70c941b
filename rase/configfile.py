"""Read a ``rase.toml``: one table, whose keys are those of ``rase.settings``. An unknown key is an error.

max_batch_seqs = 16
enable_prefix_caching = true
allow_host = ["models.example"]
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from rase.errors import InvalidSetting
from rase.settings import SETTINGS, key_of

__all__ = ["nearest", "read_file"]

MAX_BYTES = 1 << 20


def read_file(path: Path) -> dict[str, str]:
    """The texts that the file ``path`` states, by environment variable; ``rase.env`` parses them.

    Raises ``InvalidSetting`` for a file that cannot be read or is no TOML, an unknown key, and a value of
    another kind.
    """
    import tomli

    try:
        with path.open("rb") as file:
            content = tomli.loads(file.read(MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise InvalidSetting(f"the configuration file {path}", found=error.strerror) from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"the configuration file {path}", expected="TOML", found=str(error)) from None
    names = {key_of(name): name for name in SETTINGS}
    texts = {}
    for key, value in content.items():
        if key not in names:
            near = nearest(key, [name for name in names if name])
            hint = f"Did you mean '{near}'?" if near else "`rase config show` lists the keys."
            raise InvalidSetting(f"{path}: unknown key '{key[:80]}'", hint=hint)
        texts[names[key]] = _text(path, key, value, SETTINGS[names[key]].many)
    return texts


def nearest(word: str, known: list[str]) -> str | None:
    """The known word that ``word`` may have been meant for."""
    return next(iter(difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.7)), None)


def _text(path: Path, key: str, value: Any, many: bool) -> str:
    """A value of the file as the text that an environment variable would hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if many and isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return ",".join(map(str, value))
    expected = "a list" if many else "one value"
    raise InvalidSetting(f"{path}: {key}", expected=expected, found=f"a {type(value).__name__}")
