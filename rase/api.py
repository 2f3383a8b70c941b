"""The module functions: one call each for the life of a model, all on the sessions of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rase.device import DevicePreference, RuntimeDevice
from rase.profiling import profiling_snapshot
from rase.session_cache import process_cache
from rase.store import open_store

if TYPE_CHECKING:
    from rase.completion import Piece, TextRequest
    from rase.engine.config import GenerationConfig
    from rase.registry.manifest import ModelManifest
    from rase.registry.store import ImportedModel
    from rase.session import ModelSession

__all__ = [
    "attach_tokenizer", "generate_chat_registered_gguf", "generate_chat_stream_registered_gguf",
    "generate_llama_gguf", "generate_registered_gguf", "gpu_info", "import_model", "inspect_model",
    "list_models", "probe_runtime", "profiling_snapshot", "pull_model", "unload_models", "verify_model",
]  # fmt: skip

StrPath = str | os.PathLike[str]
Device = DevicePreference | RuntimeDevice | str
Messages = Sequence[Mapping[str, Any]]


# The life of a model


def pull_model(
    store: StrPath, repo: str, file: str, id: str, kind: str = "generator", architecture: str | None = None,
    context_length: int | None = None, chat_template: str | None = None,
) -> ImportedModel:  # fmt: skip
    """Download ``file`` from the Hugging Face repository ``repo`` and register it as ``id``.

    Raises ``HubError``, ``StoreError``, ``InvalidModelId``, ``UnsupportedFormat`` or ``CorruptModelFile``;
    a ``kind`` that the file is not is refused. Nothing is registered then.
    """
    from rase.registry.sources import pull

    return pull(
        open_store(store), f"hf:{repo}/{file}", id, kind=kind, architecture=architecture,
        context_length=context_length, chat_template=chat_template)  # fmt: skip


def import_model(
    store: StrPath, path: StrPath, id: str, kind: str = "generator", architecture: str | None = None,
    context_length: int | None = None, chat_template: str | None = None,
) -> ImportedModel:  # fmt: skip
    """Register the local file ``path`` as ``id``: it is hashed and checked, and stays where it is."""
    return open_store(store).import_local(
        id, path, kind=kind, architecture=architecture, context_length=context_length,
        chat_template=chat_template)  # fmt: skip


def attach_tokenizer(store: StrPath, id: str, tokenizer_path: StrPath) -> ModelManifest:
    """Link a tokenizer.json to the registered model ``id`` and return the new manifest."""
    return open_store(store).attach_tokenizer(id, tokenizer_path)


def list_models(store: StrPath) -> list[str]:
    """Ids of the registered models, sorted."""
    return [manifest.id for manifest in open_store(store).list()]


def inspect_model(store: StrPath, id: str) -> str:
    """The manifest of ``id`` as TOML. Raises ``ModelNotFound``."""
    return open_store(store).get(id).to_toml()


def verify_model(store: StrPath, id: str) -> ModelManifest:
    """Hash every file of ``id`` again. Raises ``IntegrityMismatch`` when one has changed."""
    return open_store(store).verify(id)


def unload_models() -> None:
    """Free every loaded model of this process; generations that run finish first."""
    process_cache().clear()


# Generation


def generate_registered_gguf(
    store: StrPath, id: str, prompt: str, max_tokens: int = 256, temperature: float = 0.7,
    top_k: int | None = 40, seed: int = 0, stop_tokens: Sequence[int] = (), device: Device = "auto",
) -> str:  # fmt: skip
    """Complete ``prompt`` with a registered model, which stays loaded. End tokens stop it by themselves.

    Raises what ``SessionCache.get_or_load`` and ``completion.prepare`` raise.
    """
    config = _config(max_tokens, temperature, top_k, seed, stop_tokens)
    return _generate(_session(store, id, device), _request(config, prompt=prompt))


def generate_chat_registered_gguf(
    store: StrPath, id: str, messages: Messages, max_tokens: int = 256, temperature: float = 0.7,
    top_k: int | None = 40, seed: int = 0, stop_tokens: Sequence[int] = (), device: Device = "auto",
) -> str:  # fmt: skip
    """Answer ``messages`` (mappings with role and content) through the model's chat template."""
    config = _config(max_tokens, temperature, top_k, seed, stop_tokens)
    return _generate(_session(store, id, device), _request(config, messages=messages))


def generate_chat_stream_registered_gguf(
    store: StrPath, id: str, messages: Messages, on_delta: Callable[[str], object], max_tokens: int = 256,
    temperature: float = 0.7, top_k: int | None = 40, seed: int = 0, stop_tokens: Sequence[int] = (),
    device: Device = "auto",
) -> str:  # fmt: skip
    """As ``generate_chat_registered_gguf``, calling ``on_delta(text)`` for each piece of text as it comes.

    ``on_delta`` returning False stops the generation, any other value goes on. Returns the text that was
    handed to it. What it raises passes through.
    """
    config = _config(max_tokens, temperature, top_k, seed, stop_tokens)

    def on_piece(piece: Piece) -> object:
        return on_delta(piece.text) if piece.text else None

    return _generate(_session(store, id, device), _request(config, messages=messages), on_piece)


def generate_llama_gguf(
    weights_path: StrPath, tokenizer_path: StrPath | None, prompt: str, max_tokens: int = 256,
    temperature: float = 0.7, top_k: int | None = 40, seed: int = 0, stop_tokens: Sequence[int] = (),
    device: Device = "auto",
) -> str:  # fmt: skip
    """Complete ``prompt`` with a Llama file that is in no store: loaded for this call and freed after it.

    ``tokenizer_path`` None takes the tokenizer that the file carries.
    """
    from rase.session import ModelSession

    config = _config(max_tokens, temperature, top_k, seed, stop_tokens)
    session = ModelSession.load_file(weights_path, device, tokenizer=tokenizer_path, architecture="llama")
    return _generate(session, _request(config, prompt=prompt))


# The machine


def gpu_info() -> str:
    """Whether prompts are offloaded to a GPU (``RASE_GPU=1``): ``active: <adapter>``, ``inactive``, or
    ``fallback(runtime-failure)`` after the GPU failed while it was used.
    """
    from rase import device

    return device.gpu_info()


def probe_runtime(device: Device = "auto") -> str:
    """Choose the device, run a real operation on it and return its name.

    Raises ``BackendUnavailable`` when it is absent, ``BackendError`` when the operation gives a wrong result.
    """
    chosen = RuntimeDevice.select(device)
    chosen.smoke_test()
    return chosen.name


# What the functions share


def _session(store: StrPath, id: str, device: Device) -> ModelSession:
    return process_cache().get_or_load(open_store(store), id, device)


def _config(
    max_tokens: int, temperature: float, top_k: int | None, seed: int, stop_tokens: Sequence[int]
) -> GenerationConfig:
    from rase.engine.config import GenerationConfig

    return GenerationConfig(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed, stop_tokens=stop_tokens)  # type: ignore[arg-type]  # fmt: skip


def _request(
    config: GenerationConfig, *, prompt: str | None = None, messages: Messages | None = None
) -> TextRequest:
    from rase.completion import TextRequest
    from rase.text.messages import parse_messages

    parsed = None if messages is None else parse_messages(messages)
    return TextRequest(prompt=prompt, messages=parsed, config=config)


def _generate(
    session: ModelSession, request: TextRequest, on_piece: Callable[[Piece], object] | None = None
) -> str:
    from rase import completion

    return completion.run(session, completion.prepare(session, request), on_piece).text
