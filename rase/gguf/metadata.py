"""The metadata of a GGUF file: key-value pairs of every type, as plain Python values and NumPy arrays."""

from __future__ import annotations

import struct
from typing import Any

from rase.gguf.cursor import MAX_NAME, Cursor

__all__ = ["VALUE_TYPES", "read_metadata"]

VALUE_TYPES = {
    0: "uint8", 1: "int8", 2: "uint16", 3: "int16", 4: "uint32", 5: "int32", 6: "float32",
    7: "bool", 8: "string", 9: "array", 10: "uint64", 11: "int64", 12: "float64",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
PACKED = {  # type id: (struct code, NumPy type, bytes)
    0: ("<B", "<u1", 1), 1: ("<b", "<i1", 1), 2: ("<H", "<u2", 2), 3: ("<h", "<i2", 2), 4: ("<I", "<u4", 4),
    5: ("<i", "<i4", 4), 6: ("<f", "<f4", 4), 7: ("<B", "<u1", 1), 10: ("<Q", "<u8", 8), 11: ("<q", "<i8", 8),
    12: ("<d", "<f8", 8),
}  # fmt: skip


def read_metadata(cursor: Cursor, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Read ``number`` pairs; returns the values by key and the names of their types by key.

    Values are ``str``, ``int``, ``float``, ``bool``, ``list[str]``, or a read-only NumPy array for arrays of
    numbers and booleans. Raises ``CorruptModelFile`` for a key that comes twice, an unknown type or a
    boolean that is neither 0 nor 1, and ``UnsupportedFormat`` for arrays of arrays.
    """
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for index in range(number):
        key = cursor.text(f"metadata key {index}", limit=MAX_NAME)
        if key in values:
            raise cursor.file.corrupt(f"metadata key '{key}' comes twice", key=key)
        values[key], types[key] = _value(cursor, f"metadata key '{key}'")
    return values, types


def _value(cursor: Cursor, what: str) -> tuple[Any, str]:
    kind = cursor.uint(4, f"the type of {what}")
    if kind == ARRAY:
        return _array(cursor, what)
    if kind == STRING:
        return cursor.text(what), "string"
    code, _, width = _packed(cursor, kind, f"the type of {what}")
    value = struct.unpack(code, cursor.take(width, what))[0]
    if kind == BOOL:
        if value > 1:
            raise cursor.file.corrupt(what, expected="a boolean, 0 or 1", found=value)
        value = bool(value)
    return value, VALUE_TYPES[kind]


def _array(cursor: Cursor, what: str) -> tuple[Any, str]:
    kind = cursor.uint(4, f"the element type of {what}")
    if kind == ARRAY:
        raise cursor.file.unsupported(
            f"{what} is an array of arrays",
            expected="an array of plain values",
            hint="Convert the model again.",
        )
    if kind == STRING:
        return cursor.texts(cursor.count(8, f"the number of strings in {what}"), what), "array of string"
    _, dtype, width = _packed(cursor, kind, f"the element type of {what}")
    array = cursor.numbers(cursor.count(width, f"the number of elements in {what}"), dtype, what)
    if kind == BOOL:
        if array.size and array.max() > 1:
            raise cursor.file.corrupt(what, expected="booleans, 0 or 1", found=array.max())
        array = array.view("bool")
    return array, f"array of {VALUE_TYPES[kind]}"


def _packed(cursor: Cursor, kind: int, what: str) -> tuple[str, str, int]:
    if kind not in PACKED:
        raise cursor.file.corrupt(what, expected="a type from 0 to 12", found=kind)
    return PACKED[kind]
