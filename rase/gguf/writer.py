"""Headers of GGUF files, version 3: the metadata as ``GgufFile`` gives it, and a table of tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from rase.gguf.formats import Format
from rase.gguf.metadata import PACKED, VALUE_TYPES

__all__ = ["build_header"]

_IDS = {name: number for number, name in VALUE_TYPES.items()}
_ARRAY_OF = "array of "


def build_header(
    metadata: Mapping[str, Any],
    types: Mapping[str, str],
    tensors: Sequence[tuple[str, tuple[int, ...], Format]],
    alignment: int,
) -> bytes:
    """Everything before the tensor data, padding included.

    ``types`` names the GGUF type of each value, such as "uint32" or "array of string"; ``tensors`` are
    (name, shape in NumPy order, format) in file order, whose data follow one another, each padded to
    ``alignment``. ``KeyError`` for a type name that GGUF lacks.
    """
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        out.append(_string(key))
        out.append(_value(value, types[key]))
    offset = 0
    for name, shape, form in tensors:
        out.append(_string(name))
        out.append(struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), form.ggml_id, offset))
        offset += -(-form.tensor_bytes(shape) // alignment) * alignment
    raw = b"".join(out)
    return raw + bytes(-len(raw) % alignment)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any, kind: str) -> bytes:
    if not kind.startswith(_ARRAY_OF):
        number = _IDS[kind]
        return struct.pack("<I", number) + (
            _string(value) if kind == "string" else struct.pack(PACKED[number][0], value)
        )
    number = _IDS[kind.removeprefix(_ARRAY_OF)]
    head = struct.pack("<IIQ", _IDS["array"], number, len(value))
    if number == _IDS["string"]:
        return head + b"".join(map(_string, value))
    return head + bytes(value.astype(PACKED[number][1]).tobytes())
