"""The header of one GGUF file: magic, version, metadata, table of tensors, all checked against its size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rase.errors import CorruptModelFile, UnsupportedFormat
from rase.gguf.cursor import MAX_NAME, Cursor
from rase.gguf.files import InputFile
from rase.gguf.formats import FORMATS, KNOWN_TYPES, TensorInfo
from rase.gguf.metadata import read_metadata

__all__ = ["Header", "read_header"]

DEFAULT_ALIGNMENT = 32
MAX_PAIRS = MAX_TENSORS = 2**16
PAIR_BYTES = 8 + 4 + 1  # the least that a metadata pair takes: key length, type, value
TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # the least that a tensor takes: name length, rank, one length, type, offset

FOREIGN = (  # the first bytes of files that people mistake for GGUF
    (b"FUGG", "GGUF in reverse byte order (a big-endian writer)"),
    (b"ggml", "a GGML file, older than GGUF"),
    (b"lmgg", "a GGML file, older than GGUF"),
    (b"fmgg", "a GGMF file, older than GGUF"),
    (b"tjgg", "a GGJT file, older than GGUF"),
    (b"PK\x03\x04", "a ZIP archive (a wheel or a PyTorch checkpoint)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)


@dataclass(frozen=True)
class Header:
    """What one file says about itself; ``raw`` is every byte before its tensor data."""

    version: int
    metadata: dict[str, Any]
    types: dict[str, str]  # the GGUF type of each value, such as "uint32" or "array of string"
    alignment: int
    tensors: tuple[TensorInfo, ...]  # ascending by offset, which counts from the start of the file
    raw: bytes


def read_header(file: InputFile) -> Header:
    """Parse and check the header of ``file``; its tensors carry the shard index 0.

    Raises ``UnsupportedFormat`` for anything that is no little-endian GGUF of version 2 or 3, for a tensor
    type outside ``FORMATS`` and for an alignment that is no power of two from 8 up; ``CorruptModelFile`` for
    everything that contradicts itself or the size of the file.
    """
    cursor = Cursor(file)
    version = _read_version(cursor)
    n_tensors = cursor.count(TENSOR_BYTES, "the number of tensors", limit=MAX_TENSORS)
    n_pairs = cursor.count(PAIR_BYTES, "the number of metadata keys", limit=MAX_PAIRS)
    metadata, types = read_metadata(cursor, n_pairs)
    alignment = _alignment(file, metadata, types)
    entries = [_read_entry(cursor, index) for index in range(n_tensors)]
    start = -(-cursor.position // alignment) * alignment
    tensors = _place(file, entries, start, alignment)
    raw = cursor.up_to(min(start, file.size), "the padding after the header")
    return Header(version, metadata, types, alignment, tensors, raw)


def _read_version(cursor: Cursor) -> int:
    file = cursor.file
    if file.size == 0:
        raise file.corrupt("it is empty", hint="Copy or download the file again.")
    head = file.read(0, min(file.size, 512), "its first bytes")
    if not head.startswith(b"GGUF"[: len(head)]):
        raise UnsupportedFormat(
            f"'{file.path}' is not a GGUF file", expected="the first bytes GGUF", found=_foreign(head),
            hint="Name a .gguf model file, or download it again.", path=str(file.path),
        )  # fmt: skip
    cursor.take(4, "the magic")
    version = cursor.uint(4, "the version")
    if version in (2, 3):
        return version
    found, hint = f"version {version}", "Look for a newer rase, or for an older conversion of the model."
    if version & 0xFFFF == 0 and version:
        found, hint = "a big-endian file", "Convert the model for little-endian machines."
    elif version < 2:
        hint = "Convert the model again: such files have not been written since 2023."
    raise file.unsupported(
        "its version", expected="GGUF version 2 or 3, little-endian", found=found, hint=hint
    )


def _foreign(head: bytes) -> str:
    for magic, name in FOREIGN:
        if head.startswith(magic):
            return name
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "an HTML page (a download that failed)"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "a safetensors file"
    return repr(head[:8])


def _alignment(file: InputFile, metadata: dict[str, Any], types: dict[str, str]) -> int:
    if "general.alignment" not in metadata:
        return DEFAULT_ALIGNMENT
    value, kind = metadata["general.alignment"], types["general.alignment"]
    if kind == "uint32" and value >= 8 and value & (value - 1) == 0:
        return int(value)
    raise file.unsupported(
        "metadata key 'general.alignment'", expected="a uint32, a power of two from 8 up",
        found=f"{repr(value)[:80]} as {kind}", hint="Convert the model again.", key="general.alignment",
    )  # fmt: skip


def _read_entry(cursor: Cursor, index: int) -> TensorInfo:
    """One row of the tensor table; its offset still counts from the start of the tensor data."""
    file = cursor.file
    name = cursor.text(f"the name of tensor {index}", limit=MAX_NAME)
    what = f"tensor '{name}'"
    rank = cursor.uint(4, f"the rank of {what}")
    if not 1 <= rank <= 4:
        raise file.corrupt(f"the rank of {what}", expected="1 to 4 dimensions", found=rank, tensor=name)
    lengths = [cursor.uint(8, f"the shape of {what}") for _ in range(rank)]
    kind = cursor.uint(4, f"the type of {what}")
    offset = cursor.uint(8, f"the offset of {what}")
    form = FORMATS.get(kind)
    if form is None:
        called = KNOWN_TYPES.get(kind, f"number {kind}, which is unknown")
        raise file.unsupported(
            f"{what} has type {called}", expected=", ".join(form.name for form in FORMATS.values()),
            hint="Take another quantization of the model, such as Q4_K_M or Q8_0.", tensor=name, type=called,
        )  # fmt: skip
    shape = tuple(reversed(lengths))  # the file lists the row length first
    try:
        nbytes = form.tensor_bytes(shape)
    except CorruptModelFile as error:
        what = f"{what} of shape {shape}: {error.what}"
        raise file.corrupt(what, expected=error.expected, found=error.found, tensor=name) from None
    return TensorInfo(name, shape, form, 0, offset, nbytes)


def _place(file: InputFile, entries: list[TensorInfo], start: int, alignment: int) -> tuple[TensorInfo, ...]:
    """Count offsets from the start of the file, ascending; check names, alignment, overlap and the end."""
    names: set[str] = set()
    placed: list[TensorInfo] = []
    previous, end = "", 0  # the tensor before, and where it ends in the tensor data
    for entry in sorted(entries, key=lambda entry: entry.offset):
        name, offset = entry.name, entry.offset
        if name in names:
            raise file.corrupt(f"tensor '{name}' comes twice", tensor=name)
        names.add(name)
        if offset % alignment:
            expected = f"a multiple of the alignment {alignment}"
            raise file.corrupt(f"the offset of tensor '{name}'", expected=expected, found=offset, tensor=name)
        if offset < end:
            what = f"tensor '{name}' overlaps tensor '{previous}'"
            raise file.corrupt(what, expected=f"an offset from {end} up", found=offset, tensor=name)
        previous, end = name, offset + entry.nbytes
        if start + end > file.size:
            raise file.cut(f"tensor '{name}'", start + offset, start + end, tensor=name)
        placed.append(replace(entry, offset=start + offset))
    return tuple(placed)
