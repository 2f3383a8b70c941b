"""The table of tensor formats: the name of each, the weights of a block and the bytes that it takes.

Block layouts follow the GGUF specification and the block structures of ggml. A format is added by one
line of ``FORMATS``, one function of ``dequantize.py`` and one header of the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rase.errors import CorruptModelFile

__all__ = ["FORMATS", "KNOWN_TYPES", "MAX_ELEMENTS", "W4A16", "Format", "TensorInfo", "format_named"]

MAX_ELEMENTS = 2**47  # weights in one tensor: far above any model, and every product below stays under 2**63


@dataclass(frozen=True)
class Format:
    """How the weights of a row are stored: blocks of ``block_size`` weights, each ``block_bytes`` long."""

    name: str
    ggml_id: int
    block_size: int
    block_bytes: int

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row of ``cols`` weights.

        Raises ``CorruptModelFile`` when ``cols`` is not a positive multiple of the block size.
        """
        if cols <= 0 or cols % self.block_size:
            expected = f"a positive multiple of {self.block_size}"
            raise CorruptModelFile(
                f"a row of {self.name} weights", expected=expected, found=f"{cols} weights"
            )
        return cols // self.block_size * self.block_bytes

    def tensor_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of ``shape`` (NumPy order: the last axis is the row).

        Raises ``CorruptModelFile`` for a dimension below 1, more than ``MAX_ELEMENTS`` weights, or rows
        that do not divide into blocks.
        """
        elements = 1
        for length in shape:
            if length < 1:
                raise CorruptModelFile("a dimension of a tensor", expected="at least 1", found=length)
            elements *= length
            if elements > MAX_ELEMENTS:
                expected = f"at most {MAX_ELEMENTS} weights"
                raise CorruptModelFile(
                    "the size of a tensor", expected=expected, found=f"shape {tuple(shape)}"
                )
        if not shape:
            raise CorruptModelFile("the shape of a tensor", expected="at least one dimension", found="none")
        return elements // shape[-1] * self.row_bytes(shape[-1])


FORMATS: dict[int, Format] = {
    form.ggml_id: form
    for form in (
        Format("F32", 0, 1, 4),
        Format("F16", 1, 1, 2),
        Format("BF16", 30, 1, 2),
        Format("Q4_0", 2, 32, 18),
        Format("Q4_1", 3, 32, 20),
        Format("Q5_0", 6, 32, 22),
        Format("Q5_1", 7, 32, 24),
        Format("Q8_0", 8, 32, 34),
        Format("Q2_K", 10, 256, 84),
        Format("Q3_K", 11, 256, 110),
        Format("Q4_K", 12, 256, 144),
        Format("Q5_K", 13, 256, 176),
        Format("Q6_K", 14, 256, 210),
        Format("IQ4_NL", 20, 32, 18),
        Format("IQ4_XS", 23, 256, 136),
        Format("MXFP4", 39, 32, 17),
        Format("TQ1_0", 34, 256, 54),
        Format("TQ2_0", 35, 256, 66),
        Format("IQ3_XXS", 18, 256, 98),
        Format("IQ3_S", 21, 256, 110),
        Format("IQ2_XXS", 16, 256, 66),
        Format("IQ2_XS", 17, 256, 74),
        Format("IQ2_S", 22, 256, 82),
        Format("IQ1_S", 19, 256, 50),
        Format("IQ1_M", 29, 256, 56),
    )
}

# What other containers hold and no GGUF file: numbers that ggml has not given out, from 63 down.
W4A16 = Format("W4A16", 63, 128, 68)  # AWQ by rows: float16 scale and zero point, then nibbles ascending

# Every type id that ggml has given out, retired ones too, so that a refusal can name the type.
KNOWN_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9:
    "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17:
    "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33:
    "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def format_named(name: str) -> Format:
    """The format called ``name``; ``KeyError`` when rase has none of that name."""
    for form in (*FORMATS.values(), W4A16):
        if form.name == name:
            return form
    raise KeyError(name)


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: ``shape`` in NumPy order (a matrix is (rows = out, cols = in))."""

    name: str
    shape: tuple[int, ...]
    format: Format
    shard: int  # index of the file that holds it
    offset: int  # first byte, counted from the start of that file
    nbytes: int
