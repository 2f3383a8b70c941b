"""The files of a split model: found from the name of any one of them, checked against what each says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rase.errors import CorruptModelFile, ModelFileNotFound

__all__ = ["shard_number", "shard_paths"]

PATTERN = re.compile(r"(?s)(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_SHARDS = 512


def shard_number(path: Path) -> tuple[int, int] | None:
    """(number, count) of a name like ``model-00001-of-00003.gguf``, number from 1; None for any other name."""
    match = PATTERN.fullmatch(path.name)
    return (int(match["number"]), int(match["count"])) if match else None


def shard_paths(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """All files of the model that ``path``, whose metadata is given, belongs to, in order.

    A file is a shard when its metadata says ``split.count`` > 1; its name must then say the same. Raises
    ``CorruptModelFile`` when name and metadata disagree and ``ModelFileNotFound`` naming the absent shards.
    """
    named = shard_number(path)
    declared = metadata.get("split.count", 1)
    if not isinstance(declared, int) or isinstance(declared, bool) or declared < 1:
        raise _wrong(path, "metadata key 'split.count'", "a whole number, at least 1", repr(declared))
    if declared == 1 and (named is None or named[1] == 1):
        return [path]
    number = metadata.get("split.no", 0)
    if named is None:
        raise _wrong(
            path, f"metadata says that this is shard {number} (from 0) of {declared}, and the name does not",
            f"a name like {path.stem}-00001-of-{declared:05d}.gguf", path.name,
            "Give all shards the names they were made with, in one folder.",
        )  # fmt: skip
    if declared != named[1] or number != named[0] - 1:
        raise _wrong(
            path, "name and metadata disagree about the split", f"split.no {named[0] - 1} of split.count {named[1]}",
            f"split.no {number} of split.count {declared}", "Give the file the name it was made with.",
        )  # fmt: skip
    if declared > MAX_SHARDS:
        raise _wrong(path, "the number of shards", f"at most {MAX_SHARDS}", declared)
    stem = PATTERN.fullmatch(path.name)["stem"]  # type: ignore[index]
    paths = [path.with_name(f"{stem}-{index:05d}-of-{declared:05d}.gguf") for index in range(1, declared + 1)]
    missing = [shard for shard in paths if not shard.is_file()]
    if missing:
        raise ModelFileNotFound(
            f"the model is split into {declared} files and {', '.join(repr(shard.name) for shard in missing[:4])}"
            f"{' and more' if len(missing) > 4 else ''} is absent",
            expected=f"all of them in '{path.parent}'", hint="Download the missing shard into the same folder.",
            path=str(missing[0]), missing=[str(shard) for shard in missing],
        )  # fmt: skip
    return paths


def _wrong(path: Path, what: str, expected: object, found: object, hint: str | None = None) -> CorruptModelFile:
    return CorruptModelFile(
        f"model file '{path}': {what}", expected=expected, found=found,
        hint=hint or "Copy, download or convert the file again.", path=str(path),
    )  # fmt: skip
