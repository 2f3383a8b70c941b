"""Builds small GGUF files for tests: well-formed ones with the ``gguf`` package, malformed ones by hand.

write_gguf(path, {"general.architecture": "llama", "llama.block_count": 2},
           {"token_embd.weight": (array, "Q8_0"), "blk.0.attn_q.weight": (raw, (64, 256), "Q4_K")})
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rase.gguf.dequantize import dequantize
from rase.gguf.formats import format_named

QUANTIZABLE = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "MXFP4",
    "TQ1_0",
    "TQ2_0",
)  # the gguf package writes no K-quants and no IQ formats
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
CODEBOOKS = (
    "IQ4_NL", "IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M",
)  # fmt: skip
ALL_FORMATS = QUANTIZABLE + K_QUANTS + CODEBOOKS


def quantize(array: np.ndarray, fmt: str) -> bytes:
    """The bytes of ``array`` in the format ``fmt``, one of QUANTIZABLE (``ValueError`` for the K-quants)."""
    import gguf

    if fmt not in QUANTIZABLE:
        raise ValueError(f"the gguf package cannot quantize to {fmt}: use random_blocks")
    values = np.ascontiguousarray(array, dtype=np.float32)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[fmt]).tobytes()


def weights(raw: bytes, shape: Sequence[int], fmt: str) -> np.ndarray:
    """The float32 weights that ``raw`` stands for."""
    return dequantize(format_named(fmt), raw, shape)


def write_gguf(
    path: Path | str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], *, alignment: int = 32
) -> Path:
    """Write a GGUF file (version 3) with the ``gguf`` package and return its path.

    ``metadata`` needs "general.architecture". Values: str, bool, int (uint32 where it fits, else int32,
    uint64 or int64), float (float32), list of str, int (int32) or float (float32), NumPy arrays (an array
    of their own type), or ``(value, "UINT16")`` to name the GGUF type. ``tensors`` maps names to a float
    array (written as F32), ``(float array, format)`` or ``(bytes, shape, format)``; shapes in NumPy order.
    """
    _write(path, metadata, tensors, alignment, 0)
    return Path(path)


def write_split_gguf(
    folder: Path, stem: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], tensors_per_shard: int
) -> list[Path]:
    """Write a model as the ``gguf`` package splits it, and return the paths ``stem-00001-of-0000N.gguf``, ...

    ``metadata`` and ``tensors`` as for ``write_gguf``. One shard only (all tensors fit) has the plain name.
    """
    _write(Path(folder) / f"{stem}.gguf", metadata, tensors, 32, tensors_per_shard)
    return sorted(Path(folder).glob(f"{stem}-*-of-*.gguf")) or [Path(folder) / f"{stem}.gguf"]


def _write(
    path: Path | str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], alignment: int, per_shard: int
) -> None:
    import gguf

    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=per_shard)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        if key != "general.architecture":
            writer.add_key_value(key, *_typed(value))
    for name, tensor in tensors.items():
        if isinstance(tensor, np.ndarray):
            tensor = (tensor, "F32")
        if len(tensor) == 2:
            tensor = (quantize(*tensor), tensor[0].shape, tensor[1])
        raw, shape, fmt = tensor
        form = format_named(fmt)
        if len(raw) != form.tensor_bytes(shape):
            raise ValueError(f"{name}: {len(raw)} bytes for shape {shape} in {fmt}")
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(*shape[:-1], form.row_bytes(shape[-1]))
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType[fmt])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _typed(value: Any) -> tuple[Any, ...]:
    """(value, GGUF type, element type) as the writer of the gguf package wants them."""
    from gguf import GGUFValueType as Type

    if isinstance(value, tuple):
        return value[0], Type[value[1]]
    if isinstance(value, bool):
        return value, Type.BOOL
    if isinstance(value, int):
        if value < 0:
            return value, Type.INT32 if value >= -(2**31) else Type.INT64
        return value, Type.UINT32 if value < 2**32 else Type.UINT64
    if isinstance(value, float):
        return value, Type.FLOAT32
    if isinstance(value, str):
        return value, Type.STRING
    if isinstance(value, np.ndarray):
        kind = "BOOL" if value.dtype == bool else value.dtype.name.upper()
        return value.tolist(), Type.ARRAY, Type[kind]
    kinds = {str: Type.STRING, bool: Type.BOOL, int: Type.INT32, float: Type.FLOAT32}
    return list(value), Type.ARRAY, kinds[type(value[0])]


TYPE_IDS = {
    "uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5, "float32": 6, "bool": 7,
    "string": 8, "array": 9, "uint64": 10, "int64": 11, "float64": 12,
}  # fmt: skip
_CODES = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True))


class HandMade:
    """A GGUF file written field by field, each of which a test may get wrong.

    ``pairs``: (key, type name or number, value), where an array's value is (element type, list) and a
    ``bytearray`` is written as it is, after the type; ``tensors``: (name, dimensions as the file lists them,
    type id, offset); ``data``: what follows the padding. Names and strings may be ``bytes``. After ``build``
    the offsets at which a field starts or ends are in ``borders``, the padding begins at ``header_end`` and
    ``data`` at ``data_start``.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Any, Any, Any]] = (),
        tensors: Sequence[tuple[Any, Sequence[int], int, int]] = (),
        data: bytes = b"",
        *,
        magic: bytes = b"GGUF",
        version: int = 3,
        alignment: int = 32,
        order: str = "<",
        n_tensors: int | None = None,
        n_pairs: int | None = None,
    ) -> None:
        self.pairs, self.tensors, self.data = pairs, tensors, data
        self.magic, self.version, self.alignment, self.order = magic, version, alignment, order
        self.n_tensors = len(tensors) if n_tensors is None else n_tensors
        self.n_pairs = len(pairs) if n_pairs is None else n_pairs
        self.borders: list[int] = []
        self.header_end = self.data_start = 0
        self._out = bytearray()

    def build(self) -> bytes:
        """The bytes of the file."""
        self._out = bytearray()
        self.borders = [0]
        count = "I" if self.version == 1 else "Q"  # version 1 counted in 32 bits
        self._raw(self.magic)
        self._pack("I", self.version)
        self._pack(count, self.n_tensors)
        self._pack(count, self.n_pairs)
        for key, kind, value in self.pairs:
            self._string(key, count)
            number = TYPE_IDS.get(kind, kind)
            self._pack("I", number)
            if number == TYPE_IDS["array"] and not isinstance(value, bytearray):
                element, items = value
                element = TYPE_IDS.get(element, element)
                self._pack("I", element)
                self._pack(count, len(items))
                for item in items:
                    self._value(element, item, count)
            else:
                self._value(number, value, count)
        for name, dimensions, kind, offset in self.tensors:
            self._string(name, count)
            self._pack("I", len(dimensions))
            for length in dimensions:
                self._pack("Q", length)
            self._pack("I", kind)
            self._pack("Q", offset)
        self.header_end = len(self._out)
        if self.alignment > 0:
            self._raw(bytes(-len(self._out) % self.alignment))
        self.data_start = len(self._out)
        self._raw(self.data)
        return bytes(self._out)

    def write(self, path: Path | str) -> Path:
        """Build into ``path`` and return it."""
        Path(path).write_bytes(self.build())
        return Path(path)

    def _raw(self, raw: bytes) -> None:
        self._out += raw
        self.borders.append(len(self._out))

    def _pack(self, code: str, value: Any) -> None:
        self._raw(struct.pack(self.order + code, value))

    def _string(self, text: str | bytes, count: str) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self._pack(count, len(raw))
        self._raw(raw)

    def _value(self, kind: int, value: Any, count: str) -> None:
        if isinstance(value, bytearray):
            self._raw(bytes(value))
        elif kind == TYPE_IDS["string"]:
            self._string(value, count)
        else:
            self._pack(_CODES[kind], value)
