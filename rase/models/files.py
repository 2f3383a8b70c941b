"""Opens a model, whatever format it is in: the file or the folder, told in GGUF's words."""

from __future__ import annotations

import os

from rase.checkpoint.mapping import Checkpoint
from rase.checkpoint.model import CheckpointModel, folder_config
from rase.errors import UnsupportedArchitecture, UnsupportedFormat
from rase.gguf.modelfile import ModelFile
from rase.gguf.reader import GgufFile
from rase.models import checkpoints
from rase.safetensors.folder import SafetensorsFolder

__all__ = ["open_folder", "open_model"]


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open the GGUF file (any shard of a split one) or the folder of safetensors files ``path``.

    Raises ``ModelFileNotFound``, ``UnsupportedFormat``, ``CorruptModelFile``, and for a folder
    ``UnsupportedArchitecture``.
    """
    text = os.fspath(path)
    if not os.path.isdir(text):
        if text.endswith(".safetensors"):
            raise UnsupportedFormat(
                f"'{text}' is one file of a model", expected="the folder with its config.json", path=text,
                found="a safetensors file", hint="Name the folder that holds it.",
            )  # fmt: skip
        return GgufFile.open(path)
    folder = SafetensorsFolder.open(path)
    try:
        return open_folder(folder)
    except BaseException:
        folder.close()
        raise


def open_folder(folder: SafetensorsFolder) -> CheckpointModel:
    """The model in an open folder; closing it closes the folder. Raises as ``open_model`` does."""
    architecture, checkpoint = _checkpoint(folder)
    return CheckpointModel(folder, checkpoint, architecture)


def _checkpoint(folder: SafetensorsFolder) -> tuple[str, Checkpoint]:
    config = folder_config(folder)
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise config.bad("architectures", "a list of one name", named)
    known = checkpoints()
    if named[0] not in known:
        raise UnsupportedArchitecture(
            f"'{folder.path}' is of an architecture that rase does not run", found=f"{named[0]!r:.80}",
            expected="one of " + ", ".join(sorted(known)), architecture=named[0],
            hint="Choose a folder of a supported architecture, or look for a GGUF file.",
        )  # fmt: skip
    return known[named[0]]
