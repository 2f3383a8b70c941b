"""The files of a split model: found from the name of any one of them, checked against what each says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rase.errors import ModelFileNotFound
from rase.gguf.files import InputFile

__all__ = ["shard_paths"]

PATTERN = re.compile(r"(?s)(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_SHARDS = 512  # each stays open as long as the model


def shard_paths(file: InputFile, metadata: Mapping[str, Any]) -> list[Path]:
    """All files of the model that ``file``, whose metadata is given, belongs to, in order.

    A file is a shard when its metadata says ``split.count`` > 1; its name, ``stem-00001-of-00003.gguf``,
    must then say the same. Raises ``CorruptModelFile`` when name and metadata disagree and
    ``ModelFileNotFound`` naming the absent shards.
    """
    path = file.path
    match = PATTERN.fullmatch(path.name)
    count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if type(count) is not int or type(number) is not int or not 0 <= number < count:
        found = f"{repr(number)[:40]} of {repr(count)[:40]}"
        raise file.corrupt(
            "metadata keys split.no and split.count", expected="shard 0 of 1, or alike", found=found
        )
    if count == 1 and (match is None or int(match["count"]) == 1):
        return [path]
    if match is None:
        raise file.corrupt(
            f"its metadata says that it is one of {count} shards, and its name does not",
            expected=f"a name like {path.stem}-{number + 1:05d}-of-{count:05d}.gguf", found=path.name,
            hint="Give all shards the names they were made with, in one folder.",
        )  # fmt: skip
    if (number + 1, count) != (int(match["number"]), int(match["count"])):
        raise file.corrupt(
            "its name and its metadata disagree",
            expected=f"shard {int(match['number'])} of {int(match['count'])}",
            found=f"shard {number + 1} of {count} in its metadata", hint="Give it the name it was made with.",
        )  # fmt: skip
    if count > MAX_SHARDS:
        raise file.unsupported("the number of shards", expected=f"at most {MAX_SHARDS}", found=count)
    paths = [
        path.with_name(f"{match['stem']}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1)
    ]
    missing = [shard for shard in paths if not shard.is_file()]
    if missing:
        names = ", ".join(f"'{shard.name}'" for shard in missing[:4]) + (
            " and more" if len(missing) > 4 else ""
        )
        raise ModelFileNotFound(
            f"the model is split into {count} files, and {names} is not in '{path.parent}'",
            hint="Download it into the same folder.",
            path=str(missing[0]), missing=[str(shard) for shard in missing],
        )  # fmt: skip
    return paths
