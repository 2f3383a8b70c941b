"""JSON documents of a model folder, parsed within bounds: a bad one is a typed error that names the file."""

from __future__ import annotations

import json
from typing import Any

from rase.gguf.files import InputFile

__all__ = ["parse_object", "read_document"]


def read_document(file: InputFile, limit: int) -> bytes:
    """All bytes of ``file``. Raises ``UnsupportedFormat`` when they are more than ``limit``."""
    if file.size > limit:
        raise file.unsupported("its size", expected=f"at most {limit} bytes", found=file.size)
    return file.read(0, file.size, "the document")


def parse_object(file: InputFile, data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``data``: UTF-8, no key twice. Raises ``CorruptModelFile``."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise ValueError(f"the key {name!r:.200} comes twice")
            table[name] = value
        return table

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise file.corrupt(f"{what} is not UTF-8", found=f"byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise file.corrupt(f"{what} cannot be read", expected="JSON", found=str(error)[:200]) from None
    if not isinstance(value, dict):
        raise file.corrupt(f"{what} is not an object", found=type(value).__name__)
    return value
