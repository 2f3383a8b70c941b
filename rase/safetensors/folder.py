"""``SafetensorsFolder``: a model folder in the layout of transformers, parsed before anything is loaded.

The files that make the model are ``config.json``, the safetensors files that the index names (or the only
one), and those of ``DOCUMENTS`` that are there. Nothing else of the folder is read, listed or hashed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rase.errors import CorruptModelFile, ModelFileNotFound, UnsupportedFormat
from rase.gguf.files import InputFile
from rase.gguf.formats import TensorInfo
from rase.gguf.reader import Shard
from rase.safetensors.document import parse_object, read_document
from rase.safetensors.header import MAX_TENSORS, read_header

__all__ = ["CONFIG", "DOCUMENTS", "SafetensorsFolder"]

CONFIG, INDEX, ONLY = "config.json", "model.safetensors.index.json", "model.safetensors"
DOCUMENTS = {  # what a model is besides its weights, and the most bytes of each
    CONFIG: 2**24, "generation_config.json": 2**20, INDEX: 2**27, "tokenizer.json": 2**28,
    "tokenizer_config.json": 2**24, "chat_template.jinja": 2**22, "chat_template.json": 2**22,
}  # fmt: skip
MAX_FILES = 512  # each stays open as long as the model
AGAIN = "Download the folder again."


class SafetensorsFolder:
    """An open folder. Use it as a context manager, or call ``close``.

    ``shards`` are its files by name: the header of a document is all of it. ``tensors`` have the names,
    shapes and dtypes of the files, in file order. ``documents`` holds the bytes of each document by its name.
    """

    def __init__(self, path: Path, shards: list[Shard], tensors: dict[str, TensorInfo]) -> None:
        self.path, self.shards, self.tensors = path, tuple(shards), tensors
        self.documents = {shard.path.name: shard.header for shard in shards if shard.path.name in DOCUMENTS}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the folder ``path``.

        Raises ``ModelFileNotFound`` (a file is absent), ``UnsupportedFormat`` (no safetensors files, a dtype
        that is not known) or ``CorruptModelFile`` (cut, contradictory, a name that leaves the folder).
        """
        path = Path(os.path.abspath(path))
        opened: list[InputFile] = []
        try:
            documents = _documents(path, opened)
            owners = _index(documents[INDEX]) if INDEX in documents else None
            names = sorted(set(owners.values())) if owners is not None else [_only(path)]
            if len(names) > MAX_FILES:
                raise documents[INDEX].file.unsupported(
                    "files", expected=f"at most {MAX_FILES}", found=len(names)
                )
            weights: dict[str, tuple[Shard, tuple[TensorInfo, ...]]] = {}
            for name in names:
                opened.append(file := _open(path / name))
                header = read_header(file)
                weights[name] = Shard(file.path, file.size, header.raw, file), header.tensors
            shards = [
                weights[name][0] if name in weights else documents[name]
                for name in sorted(weights.keys() | documents.keys())
            ]
            return cls(path, shards, _merge(shards, weights, owners))
        except BaseException:
            for file in opened:
                file.close()
            raise

    def document(self, name: str) -> dict[str, Any] | None:
        """The JSON object in the document ``name``, or None. Raises ``CorruptModelFile``."""
        if name not in self.documents:
            return None
        return parse_object(self.file(name), self.documents[name], "the document")

    def file(self, name: str) -> InputFile:
        """The open file ``name``; ``KeyError`` where the model has none of that name."""
        for shard in self.shards:
            if shard.path.name == name:
                return shard.file
        raise KeyError(name)

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        for shard in self.shards:
            shard.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: Path) -> InputFile:
    if not os.path.lexists(path):
        raise ModelFileNotFound(
            f"'{path.name}' is not in '{path.parent}'", hint=AGAIN, path=str(path), missing=[str(path)]
        )
    return InputFile(path)


def _documents(path: Path, opened: list[InputFile]) -> dict[str, Shard]:
    documents: dict[str, Shard] = {}
    for name, limit in DOCUMENTS.items():
        if name != CONFIG and not os.path.lexists(path / name):
            continue
        opened.append(file := _open(path / name))
        documents[name] = Shard(file.path, file.size, read_document(file, limit), file)
    return documents


def _index(shard: Shard) -> dict[str, str]:
    """Tensor name -> file name. Raises ``CorruptModelFile`` for a name that is not one of this folder."""
    owners = parse_object(shard.file, shard.header, "the index").get("weight_map")
    if not isinstance(owners, dict) or not owners:
        raise shard.file.corrupt("'weight_map'", expected="tensors and their files", found=f"{owners!r:.80}")
    if len(owners) > MAX_TENSORS:
        raise shard.file.corrupt("'weight_map'", expected=f"at most {MAX_TENSORS}", found=len(owners))
    for name in owners.values():
        plain = isinstance(name, str) and name == os.path.basename(name) and name.endswith(".safetensors")
        if not plain or "\0" in name or name.startswith("."):
            raise shard.file.corrupt(
                "'weight_map' names a file that is none of this folder", found=f"{name!r:.120}",
                expected="a name that ends in .safetensors, without a folder", hint=AGAIN,
            )  # fmt: skip
    return owners


def _only(path: Path) -> str:
    """The name of the weights file of a folder without an index."""
    try:
        found = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    except OSError as error:
        raise ModelFileNotFound(f"the folder '{path}' cannot be read", found=error.strerror) from None
    if ONLY in found or len(found) == 1:
        return ONLY if ONLY in found else found[0]
    if found:
        raise CorruptModelFile(
            f"'{path}' holds several safetensors files and no index of them", expected=INDEX, hint=AGAIN,
            path=str(path),
        )  # fmt: skip
    raise UnsupportedFormat(
        f"'{path}' holds no safetensors files", expected=f"{ONLY}, or files and {INDEX}",
        hint="Choose a version of the model in safetensors or GGUF.", path=str(path),
    )  # fmt: skip


def _merge(
    shards: list[Shard],
    weights: dict[str, tuple[Shard, tuple[TensorInfo, ...]]],
    owners: dict[str, str] | None,
) -> dict[str, TensorInfo]:
    """All tensors, each once and where the index says."""
    tensors: dict[str, TensorInfo] = {}
    for number, shard in enumerate(shards):
        for info in weights.get(shard.path.name, (shard, ()))[1]:
            if info.name in tensors:
                raise shard.file.corrupt(f"tensor '{info.name}' is in an earlier file, too", tensor=info.name)
            if owners is not None and owners.get(info.name) != shard.path.name:
                raise shard.file.corrupt(
                    f"the index does not say that tensor '{info.name}' is here", tensor=info.name, hint=AGAIN,
                    expected=f"'{shard.path.name}'", found=f"{owners.get(info.name)!r}",
                )  # fmt: skip
            tensors[info.name] = replace(info, shard=number)
    owners = owners or {}
    missing = [name for name in owners if name not in tensors]
    if missing:
        raise CorruptModelFile(
            f"tensor '{missing[0]:.200}' is not in '{owners[missing[0]]}', where the index says", hint=AGAIN,
            missing=missing[:100],
        )  # fmt: skip
    return tensors
