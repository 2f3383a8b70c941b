"""Typed reads of a GGUF file's metadata: what is absent, of another type or out of range is named."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from rase.errors import CorruptModelFile, UnsupportedArchitecture

__all__ = ["HINT", "Keys"]

_REQUIRED: Any = object()
HINT = "The file's metadata are damaged or were written for another model."

# Keys that say something of a model and ask for no other computation, or for one that another key asks for.
_DESCRIBE = frozenset({
    "vocab_size", "tensor_data_layout", "pooling_type", "expert_used_count", "mm.tokens_per_image",
    "rope.scaling.finetuned", "rope.scaling.original_context_length",
})  # fmt: skip


class Keys:
    """Typed reads of ``<architecture>.<name>`` keys. A read without a default requires the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture
        self._read: set[str] = set()

    def integer(self, name: str, default: Any = _REQUIRED, *, least: int = 1) -> Any:
        """An integer of at least ``least``, or ``default``."""
        value = self._find(name, default, "an integer")
        if value is default:
            return default
        return self._integer(name, value, least)

    def per_layer_integer(self, name: str, n_layers: int, default: Any = _REQUIRED) -> Any:
        """An integer, also where a file writes one for each layer; refused by name when they differ."""
        value = self._find(name, default, "an integer")
        if value is default or not hasattr(value, "__len__") or isinstance(value, str):
            return default if value is default else self._integer(name, value, 1)
        values = [self._integer(name, item, 1) for item in value]
        if len(values) != n_layers:
            raise self.bad(name, f"{n_layers} values, one per layer", f"{len(values)} values")
        if len(set(values)) != 1:
            raise UnsupportedArchitecture(
                f"metadata key '{self._key(name)}' differs between layers",
                expected="one value for all layers",
                found=", ".join(map(str, values[:8])),
                hint="rase does not run models whose layers differ in size.",
            )
        return values[0]

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite float above zero, or ``default``."""
        value = self._find(name, default, "a number")
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(name, "a number", f"{type(value).__name__} {value!r:.60}")
        if not (math.isfinite(value) and value > 0):
            raise self.bad(name, "a finite number above 0", value)
        return float(value)

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """A finite float above zero; ``default`` where the key is absent, None where it is 0."""
        value = self._find(name, default, "a number")
        if value is default or (value == 0 and not isinstance(value, bool)):
            return default if value is default else None
        number: float = self.number(name)
        return number

    def layer_flags(self, name: str, n_layers: int, default: int | tuple[bool, ...]) -> tuple[bool, ...]:
        """Which layers are meant: an array of booleans, or true but for every so-and-so-many-th layer.

        ``default`` is that period, or flags; a file may write either.
        """
        value = self._find(name, default, "an integer or booleans")
        if not hasattr(value, "__len__") or isinstance(value, str):
            period = self._integer(name, value, 1)
            return tuple((i + 1) % period != 0 for i in range(n_layers))
        if len(value) < n_layers:
            raise self.bad(name, f"{n_layers} values, one per layer", f"{len(value)} values")
        return tuple(bool(flag) for flag in value[:n_layers])

    def pass_over(self, *names: str) -> None:
        """These keys ask for nothing that this architecture would compute otherwise."""
        self._read.update(map(self._key, names))

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A string, or ``default``."""
        value = self._find(name, default, "a string")
        if value is not default and not isinstance(value, str):
            raise self.bad(name, "a string", f"{type(value).__name__} {value!r:.60}")
        return value

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        """A boolean, or ``default``."""
        value = self._find(name, default, "a boolean")
        if value is not default and not isinstance(value, bool):
            raise self.bad(name, "a boolean", f"{type(value).__name__} {value!r:.60}")
        return value

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def _find(self, name: str, default: Any, expected: str) -> Any:
        self._read.add(self._key(name))
        value = self.metadata.get(self._key(name), default)
        if value is _REQUIRED:
            raise CorruptModelFile(
                f"metadata key '{self._key(name)}' is missing", expected=expected, found="no such key",
                hint=HINT, key=self._key(name),
            )  # fmt: skip
        return value

    def _integer(self, name: str, value: Any, least: int) -> int:
        try:  # an array of numbers has __index__, too, and refuses only when it is asked
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise self.bad(name, "an integer", f"{type(value).__name__} {value!r:.60}")
        if not least <= number < 2**31:
            raise self.bad(name, f"an integer from {least} to 2147483647", number)
        return number

    def refuse_unread(self) -> None:
        """Raise ``UnsupportedArchitecture`` for a key of this architecture that nothing has read.

        Such a key asks for something that the architecture file does not compute. What is zero or false asks
        for nothing, and the keys of ``_DESCRIBE`` change no number.
        """
        prefix = f"{self.architecture}."
        for key, value in self.metadata.items():
            if not key.startswith(prefix) or key in self._read or key.removeprefix(prefix) in _DESCRIBE:
                continue
            if isinstance(value, bool | int | float) and not value:
                continue
            raise UnsupportedArchitecture(
                f"metadata key '{key:.80}' is not known", found=f"{value!r:.60}",
                expected=f"keys that architecture '{self.architecture}' has",
                hint="The file holds a variant of this architecture that rase does not run.",
            )  # fmt: skip

    def bad(self, name: str, expected: str, found: object) -> CorruptModelFile:
        key = self._key(name)
        return CorruptModelFile(f"metadata key '{key}'", expected=expected, found=found, hint=HINT, key=key)
