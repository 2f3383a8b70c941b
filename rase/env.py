"""Find the value of a setting: option of the command, environment variable, file, else its default.

``get`` returns the typed value. Text that does not parse raises ``InvalidSetting`` instead of being ignored.
In a Python process only the environment counts; commands read files as well, and take options
(``command``): the file that ``--config`` or RASE_CONFIG names, or ``rase.toml`` in the working directory,
before ``rase.toml`` in the user's folder for configurations.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rase.errors import InvalidSetting
from rase.settings import SETTINGS, Setting, key_of, option_of

__all__ = [
    "SETTINGS", "Found", "Setting", "check", "choose", "command", "files", "find", "get", "name_file",
    "texts",
]  # fmt: skip

FILE = "rase.toml"


class Found(NamedTuple):
    """A value and where it comes from: an option, a variable, a path, or the word ``default``."""

    value: Any
    source: str


@dataclass
class _Layers:
    """What counts besides the environment."""

    options: dict[str, str] = field(default_factory=dict)  # variable: text
    config: str | None = None  # the named file
    files: list[tuple[Path, dict[str, str]]] | None = None  # None: not read yet


_layers: _Layers | None = None  # None: no command runs in this process


@contextlib.contextmanager
def command() -> Iterator[None]:
    """While it is entered, configuration files count, and options that ``choose`` tells of."""
    global _layers
    before, _layers = _layers, _Layers()
    try:
        yield
    finally:
        _layers = before


def choose(name: str, text: str) -> None:
    """An option of the running command says ``text`` for the variable ``name``; it is checked at once."""
    if _layers is None:
        raise RuntimeError("options belong to a command")
    _parsed(name, text, option_of(name))
    _layers.options[name] = text


def name_file(path: str) -> None:
    """The running command reads ``path`` instead of a file of the working directory.

    Raises ``InvalidSetting`` when it cannot be read, or has something wrong.
    """
    if _layers is None:
        raise RuntimeError("configuration files belong to a command")
    _layers.config, _layers.files = path, None
    _read_files(_layers)


def files() -> list[tuple[Path, bool]]:
    """The files that a command reads, the first one first, and whether each is there."""
    import platformdirs

    named = (_layers.config if _layers is not None else None) or os.environ.get("RASE_CONFIG")
    user = platformdirs.user_config_path("rase", appauthor=False) / FILE
    paths = [Path(named) if named else Path(FILE).absolute(), user]
    return [(path, path.is_file() or (bool(named) and path is paths[0])) for path in paths]


def get(name: str) -> Any:
    """The typed value of the variable ``name``, or its default when nothing sets it.

    Raises ``InvalidSetting`` when the text does not parse, or a file that is read has something wrong.
    """
    return find(name).value


def find(name: str) -> Found:
    """As ``get``, with the place that says so. An empty environment variable says nothing."""
    setting = SETTINGS[name]
    if _layers is not None and name in _layers.options:
        return Found(_parsed(name, _layers.options[name], option_of(name)), option_of(name))
    if text := os.environ.get(name, ""):
        return Found(
            _parsed(name, text, f"environment variable {name}", f"Unset {name} or correct it."), name
        )
    if _layers is not None:
        for path, texts in _read_files(_layers):
            if name in texts:
                return Found(_parsed(name, texts[name], f"{path}: {key_of(name)}"), str(path))
    return Found(setting.default, "default")


def texts() -> tuple[dict[str, str], dict[str, str]]:
    """What is set, but secrets, as text by variable, for processes elsewhere.

    First what options and files say, which counts there, too; then what this environment says, which the
    environment there comes before. Raises ``InvalidSetting`` for a file with something wrong.
    """
    given: dict[str, str] = {}
    inherited: dict[str, str] = {}
    for name, setting in SETTINGS.items():
        if setting.secret:
            continue
        if _layers is not None and name in _layers.options:
            given[name] = _layers.options[name]
        elif text := os.environ.get(name, ""):
            inherited[name] = text
        elif _layers is not None:
            for _, values in reversed(_read_files(_layers)):  # what stands first counts
                given |= {name: values[name]} if name in values else {}
    return given, inherited


def check() -> None:
    """Look at every setting. Raises ``InvalidSetting`` for the first that is wrong."""
    for name in SETTINGS:
        find(name)


def _parsed(name: str, text: str, where: str, hint: str = "Correct it.") -> Any:
    setting = SETTINGS[name]
    try:
        return setting.parse(text)
    except (ValueError, OverflowError):
        found = "a value that is not shown" if setting.secret else repr(text[:80])
        raise InvalidSetting(where, expected=setting.kind, found=found, hint=hint) from None


def _read_files(layers: _Layers) -> list[tuple[Path, dict[str, str]]]:
    if layers.files is None:
        from rase.configfile import read_file

        layers.files = [(path, read_file(path)) for path, there in files() if there]
    return layers.files
