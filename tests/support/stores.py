"""Small files and stores for tests of the registry: a toy GGUF per number, split files, tokenizers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.gguf_build import write_gguf


def toy_gguf(path: Path, number: int = 0, **metadata: Any) -> Path:
    """A GGUF file of about a kilobyte that parses, different for each ``number``; it cannot run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"general.architecture": "llama", "llama.context_length": 64, **metadata}
    return write_gguf(path, facts, {"token_embd.weight": np.full((2, 32), number, np.float32)})


def toy_shards(folder: Path, count: int = 2) -> list[Path]:
    """The shards of one split GGUF model, one tensor each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        facts: dict[str, Any] = {"general.architecture": "llama"}
        if number == 0:
            facts["llama.context_length"] = 64
        facts |= {
            "split.no": (number, "UINT16"), "split.count": (count, "UINT16"),
            "split.tensors.count": (count, "INT32"),
        }  # fmt: skip
        path = folder / f"toy-{number + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_gguf(path, facts, {f"blk.{number}.w": np.full((2, 32), number, np.float32)}))
    return paths


def toy_safetensors(path: Path, number: int = 0) -> Path:
    """A safetensors file with one tensor of eight bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", number, number))
    return path


def toy_tokenizer(path: Path, number: int = 0) -> Path:
    """A ``tokenizer.json`` of single bytes (257 tokens), different for each ``number``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: id for id, word in enumerate((*alphabet, f"n{number}"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return path
