"""The model store as rase offers it: a registry that refuses a file which cannot run when it is registered.

``rase.registry`` knows files, hashes and manifests; which architectures there are is known up here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rase.errors import TokenizerError
from rase.registry import store

if TYPE_CHECKING:
    from rase.gguf.modelfile import ModelFile
    from rase.gguf.reader import GgufFile
    from rase.registry.manifest import ModelKind
    from rase.registry.weights import Checked
    from rase.safetensors.folder import SafetensorsFolder
    from rase.text.chat import ChatTemplate

__all__ = ["ModelRegistry", "open_store"]


class ModelRegistry(store.ModelRegistry):
    """A model store. Every change holds its lock and is durable when it returns; reading takes no lock.

    ``import_local`` builds the model's graph from the file's metadata, so that an unknown architecture, a
    missing tensor or a wrong shape is an error then, and not at the first question. It also tests the file's
    own tokenizer, and says what is wrong with it.
    """

    def check(
        self, file: GgufFile | SafetensorsFolder, architecture: str | None, context_length: int | None,
        kind: ModelKind | None,
    ) -> Checked:  # fmt: skip
        from rase import models
        from rase.models.files import open_folder
        from rase.registry.manifest import ModelKind
        from rase.registry.weights import Checked
        from rase.safetensors.folder import SafetensorsFolder
        from rase.text.select import choose_template

        model = open_folder(file) if isinstance(file, SafetensorsFolder) else file
        kind = ModelKind(models.kind_of(model.metadata)) if kind is None else kind
        models.build(model.metadata, model.tensors, architecture, context_length, kind.value)
        found = models.resolve(architecture or str(model.metadata.get("general.architecture")))
        embedding = kind == "embedding"
        template = None if embedding else choose_template(None, model.metadata, found.chat_template)
        problems = _problems(model, template, embedding)
        return Checked(model.metadata, kind, tuple(problems), chats=template is not None)


def _problems(model: ModelFile, template: ChatTemplate | None, embedding: bool) -> list[str]:
    """What the self-test of the model's tokenizer says; one that cannot be built can still be replaced."""
    from rase.text.selftest import problems_of
    from rase.text.tokenizer import LocalTokenizer

    try:
        if model.tokenizer_json is not None:
            tokenizer = LocalTokenizer.from_json(model.tokenizer_json).with_metadata(model.metadata)
        else:
            tokenizer = LocalTokenizer.from_gguf(model.metadata)
    except TokenizerError as error:
        return [f"{error} (the model does not run before another one is attached)"]
    return problems_of(tokenizer, template, model.metadata, embedding=embedding)


def open_store(root: str | os.PathLike[str] | None = None) -> ModelRegistry:
    """Open the model store ``root`` (default: ``RASE_STORE``, else the user's data folder)."""
    if root is None:
        from rase.registry import default_store

        root = default_store()
    return ModelRegistry.open(root)
