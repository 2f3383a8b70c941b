"""Every environment variable that rase reads: name, type, default, meaning.

``get`` returns the typed value or the default; a value that does not parse raises ``InvalidSetting``
instead of being ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rase.duration import seconds
from rase.errors import InvalidSetting

__all__ = ["SETTINGS", "Setting", "get", "read"]


@dataclass(frozen=True)
class Setting:
    """One variable: how its text becomes a value, and what it means."""

    parse: Callable[[str], Any]
    kind: str  # what a person may write, for messages and documentation
    default: Any
    meaning: str


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]i?)?B?", text.strip()).groups()  # type: ignore[union-attr]
    factor = 1024 if unit and unit.endswith("i") else 1000
    return int(float(number) * factor ** (" kMGT".index(unit[0]) if unit else 0))


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return parse


SETTINGS: dict[str, Setting] = {
    "RASE_ISA": Setting(
        str, "an instruction set: scalar, avx2, avxvnni, avx512, amx; on ARM scalar, neon, dotprod", None,
        "Force the kernels' instruction set."),
    "RASE_NUMERICS": Setting(
        _choice("fast", "portable"), "fast or portable", "fast",
        "Numerics class: 'portable' uses the integer path for prompts and answers on every machine."),
    "RASE_PREFILL": Setting(
        _choice("auto", "int8", "f32", "bf16"), "auto, int8, f32 or bf16", "auto",
        "Arithmetic for prompt tokens; 'auto' takes the fastest one that the class allows."),
    "RASE_NUM_THREADS": Setting(
        _count, "a whole number, at least 1", None,
        "Threads for decode; default: the physical cores of this process (all but four from twelve up)."),
    "CANDLE_NUM_THREADS": Setting(
        _count, "a whole number, at least 1", None, "Threads for decode where RASE_NUM_THREADS is not set."),
    "RAYON_NUM_THREADS": Setting(_count, "a whole number, at least 1", None, "Threads for prefill."),
    "RASE_MAX_BATCH_TOKENS": Setting(
        _count, "a whole number, at least 1", 512, "Tokens that one step of a model computes at most."),
    "RASE_MAX_BATCH_SEQS": Setting(
        _count, "a whole number, at least 1", 64, "Sequences of a model that run at one time; others wait."),
    "RASE_CHUNKED_PREFILL_SIZE": Setting(
        _whole, "a whole number; 0 for no bound of its own", 0, "Prompt tokens of one step at most."),
    "RASE_PREFIX_CACHING": Setting(_flag, "0 or 1", True, "Keep computed prefixes for later requests."),
    "RASE_SPECULATION": Setting(_flag, "0 or 1", True, "Guess tokens by prompt lookup and verify them."),
    "RASE_KV_CACHE": Setting(
        _bytes, "bytes, or a size such as 12GB", None,
        "Memory of a model's KV cache; default: four whole contexts, within half of what is free."),
    "RASE_PROFILE": Setting(_flag, "0 or 1", False, "Count the time of each phase; read once per process."),
    "RASE_BACKEND": Setting(
        str, "a backend's name", "cpu",
        "The backend that runs device cpu; 'reference' is the slow float64 oracle."),
    "RASE_KEEP_ALIVE": Setting(
        seconds, "seconds, or a duration such as 5m; negative: for ever", seconds("5m"),
        "How long `rase serve` keeps a model after its last use."),
    "RASE_MEMORY_BUDGET": Setting(
        _bytes, "bytes, or a size such as 12GB", None,
        "How much the weights of all loaded models may take together; default: what the machine has."),
    "RASE_PREFIX_STORE": Setting(
        str, "a folder", None, "Where computed prompts are kept across restarts; default: nowhere."),
    "RASE_PREFIX_STORE_SIZE": Setting(
        _bytes, "bytes, or a size such as 12GB", 8 * 10**9, "How much that folder may take."),
    "RASE_STORE": Setting(str, "a folder", None, "The model store; default: the user's data folder."),
}  # fmt: skip


def get(name: str) -> Any:
    """Return the typed value of the variable ``name``, or its default when unset or empty.

    Raises ``InvalidSetting`` when the text does not parse.
    """
    return read(name, None)


def read(name: str, text: str | None, option: str | None = None) -> Any:
    """As ``get``, but ``text`` (what the command line's ``option`` says), unless None, counts instead."""
    setting = SETTINGS[name]
    if text is None:
        option, text = None, os.environ.get(name, "")
        if text == "":
            return setting.default
    try:
        return setting.parse(text)
    except (AttributeError, ValueError, KeyError):
        raise InvalidSetting(
            option or f"environment variable {name}",
            expected=setting.kind,
            found=repr(text),
            hint="Correct it." if option else f"Unset {name} or correct it.",
        ) from None
