"""The metadata of a GGUF file: key-value pairs of every type, as plain Python values and NumPy arrays."""

from __future__ import annotations

import struct
from typing import Any

from rase.errors import CorruptModelFile, UnsupportedFormat
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
            raise _wrong(cursor, f"metadata key '{key}'", "each key once", "it comes twice")
        kind = cursor.uint(4, f"the type of metadata key '{key}'")
        values[key], types[key] = _value(cursor, key, kind)
    return values, types


def _value(cursor: Cursor, key: str, kind: int) -> tuple[Any, str]:
    what = f"metadata key '{key}'"
    if kind == ARRAY:
        return _array(cursor, key)
    if kind == STRING:
        return cursor.text(what), "string"
    if kind not in PACKED:
        raise _wrong(cursor, f"the type of {what}", "a type from 0 to 12", kind)
    code, _, width = PACKED[kind]
    value = struct.unpack(code, cursor.take(width, what))[0]
    if kind == BOOL:
        if value > 1:
            raise _wrong(cursor, what, "a boolean, 0 or 1", value)
        value = bool(value)
    return value, VALUE_TYPES[kind]


def _array(cursor: Cursor, key: str) -> tuple[Any, str]:
    what = f"metadata key '{key}'"
    kind = cursor.uint(4, f"the element type of {what}")
    if kind == ARRAY:
        raise UnsupportedFormat(
            f"model file '{cursor.file.path}': {what} is an array of arrays", expected="an array of plain values",
            hint="No known model needs one: convert the model again.", path=str(cursor.file.path), key=key,
        )  # fmt: skip
    if kind == STRING:
        return cursor.texts(cursor.count(8, f"the number of strings in {what}"), what), "array of string"
    if kind not in PACKED:
        raise _wrong(cursor, f"the element type of {what}", "a type from 0 to 12", kind)
    _, dtype, width = PACKED[kind]
    array = cursor.numbers(cursor.count(width, f"the number of elements in {what}"), dtype, what)
    if kind == BOOL:
        if array.size and int(array.max()) > 1:  # type: ignore[arg-type]
            raise _wrong(cursor, what, "booleans, 0 or 1", int(array.max()))  # type: ignore[arg-type]
        array = array.view("bool")
    return array, f"array of {VALUE_TYPES[kind]}"


def _wrong(cursor: Cursor, what: str, expected: object, found: object) -> CorruptModelFile:
    return CorruptModelFile(
        f"model file '{cursor.file.path}': {what}", expected=expected, found=found,
        hint="Copy, download or convert the file again.", path=str(cursor.file.path),
    )  # fmt: skip
