"""The header of one safetensors file: its table of tensors, checked against itself and the file's size.

Format: eight bytes little-endian header length, a JSON object, the data
(https://github.com/huggingface/safetensors). Tensors fill the data without gaps, so that nothing can hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rase.gguf.files import InputFile
from rase.gguf.formats import FORMATS, MAX_ELEMENTS, Format, TensorInfo
from rase.safetensors.document import parse_object

__all__ = ["DTYPES", "MAX_HEADER", "MAX_TENSORS", "Header", "check_file", "read_header"]

MAX_HEADER = 100_000_000  # bytes; the limit of the format's own library
MAX_TENSORS = 2**18  # of all files of a model: 128 experts of three AWQ matrices in 94 layers make 108,000
MAX_RANK = 8
DTYPES: dict[str, Format] = {form.name: form for form in FORMATS.values() if form.block_size == 1}
DTYPES |= {  # what no graph reads as it is; the numbers are ggml's where it has the type
    name: Format(name, number, 1, width)
    for name, number, width in (
        ("F64", 28, 8), ("I64", 27, 8), ("I32", 26, 4), ("I16", 25, 2), ("I8", 24, 1), ("U64", -1, 8),
        ("U32", -1, 4), ("U16", -1, 2), ("U8", -1, 1), ("BOOL", -1, 1), ("F8_E4M3", -1, 1),
        ("F8_E5M2", -1, 1), ("F8_E8M0", -1, 1), ("C64", -1, 8),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """``raw`` is every byte before the data; ``tensors`` ascend by offset, counted from the file's start."""

    raw: bytes
    tensors: tuple[TensorInfo, ...]


def read_header(file: InputFile) -> Header:
    """Parse and check the header of ``file``; its tensors carry the shard index 0.

    Raises ``CorruptModelFile`` for a header that contradicts itself or the size of the file, and
    ``UnsupportedFormat`` for a dtype that is not known.
    """
    length = int.from_bytes(file.read(0, 8, "the length of its header"), "little") if file.size >= 8 else 0
    if not 2 <= length <= min(file.size - 8, MAX_HEADER):
        raise file.corrupt(
            "it is not a safetensors file", expected=f"a header that fits into {file.size} bytes",
            found=f"a header of {length} bytes",
        )  # fmt: skip
    raw = file.read(0, 8 + length, "its header")
    table = parse_object(file, raw[8:], "the header")
    table.pop("__metadata__", None)
    if len(table) > MAX_TENSORS:
        raise file.corrupt("the header", expected=f"at most {MAX_TENSORS} tensors", found=len(table))
    entries = [_entry(file, *item) for item in table.items()]
    entries.sort(key=lambda info: (info.offset, info.nbytes))  # what is empty before what begins there
    end = 0
    for info in entries:
        if info.offset != end:
            what = f"tensor '{info.name}' {'overlaps another' if info.offset < end else 'follows a gap'}"
            raise file.corrupt(what, expected=f"the offset {end}", found=info.offset, tensor=info.name)
        end = info.offset + info.nbytes
    if end != file.size - 8 - length:
        raise file.corrupt(
            "it is cut or has bytes to spare", expected=f"{end} bytes of data", found=file.size - 8 - length,
            hint="Fetch it again.",
        )  # fmt: skip
    start = 8 + length
    return Header(raw, tuple(replace(info, offset=start + info.offset) for info in entries))


def _entry(file: InputFile, name: str, item: Any) -> TensorInfo:
    """One row of the table; its offset still counts from the start of the data."""
    what = f"tensor '{name:.200}'"
    if not isinstance(item, dict):
        raise file.corrupt(what, expected="an object", found=type(item).__name__, tensor=name)
    shape: Any
    span: Any
    dtype, shape, span = item.get("dtype"), item.get("shape"), item.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise file.unsupported(
            f"{what} has dtype {dtype!r:.40}", expected=", ".join(DTYPES), tensor=name,
            hint="Convert the model to BF16, F16 or F32.",
        )  # fmt: skip
    if not (_lengths(shape) and len(shape) <= MAX_RANK and math.prod(shape) <= MAX_ELEMENTS):
        raise file.corrupt(f"the shape of {what}", expected="lengths", found=f"{shape!r:.80}", tensor=name)
    if not (_lengths(span) and len(span) == 2 and span[0] <= span[1] <= file.size):
        expected = f"two ascending offsets up to {file.size}"
        raise file.corrupt(f"the offsets of {what}", expected=expected, found=f"{span!r:.80}", tensor=name)
    nbytes = math.prod(shape) * DTYPES[dtype].block_bytes
    if span[1] - span[0] != nbytes:
        raise file.corrupt(
            f"the offsets of {what}", expected=f"{nbytes} bytes for {dtype} of shape {tuple(shape)}",
            found=f"{span[1] - span[0]} bytes", tensor=name,
        )  # fmt: skip
    return TensorInfo(name, tuple(shape), DTYPES[dtype], 0, span[0], nbytes)


def _lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def check_file(path: str) -> None:
    """Raise what ``read_header`` does, or ``ModelFileNotFound``, unless ``path`` is a sound file."""
    file = InputFile(path)
    try:
        read_header(file)
    finally:
        file.close()
