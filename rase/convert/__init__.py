"""Models from one file format to another: ``quantize_gguf`` writes a smaller GGUF file."""

from __future__ import annotations

from rase.convert.quantize import quantize_gguf

__all__ = ["quantize_gguf"]
