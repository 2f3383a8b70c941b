"""Models from one format to another: ``quantize_gguf`` writes a smaller GGUF file of a file or a folder."""

from __future__ import annotations

from rase.convert.quantize import quantize_gguf
from rase.convert.vocabulary import has_vocabulary

__all__ = ["has_vocabulary", "quantize_gguf"]
