"""rase: a local LLM engine that gives the same bits for the same request.

    import rase

    model = rase.load("smollm2")
    print(model.chat("What is the capital of France?"))
    for piece in model.stream("Count to five."):
        print(piece, end="")

Every public name is an attribute of this package and is imported when it is first used: ``import rase``
itself loads no NumPy, no kernel and no server.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for true; importing it from typing would be most of the budget
if TYPE_CHECKING:
    from rase.api import attach_tokenizer as attach_tokenizer
    from rase.api import generate_chat_registered_gguf as generate_chat_registered_gguf
    from rase.api import generate_chat_stream_registered_gguf as generate_chat_stream_registered_gguf
    from rase.api import generate_llama_gguf as generate_llama_gguf
    from rase.api import generate_registered_gguf as generate_registered_gguf
    from rase.api import gpu_info as gpu_info
    from rase.api import import_model as import_model
    from rase.api import inspect_model as inspect_model
    from rase.api import list_models as list_models
    from rase.api import probe_runtime as probe_runtime
    from rase.api import pull_model as pull_model
    from rase.api import unload_models as unload_models
    from rase.api import verify_model as verify_model
    from rase.completion import Choice as Choice
    from rase.completion import Completion as Completion
    from rase.completion import Piece as Piece
    from rase.completion import TextRequest as TextRequest
    from rase.decoders import LlamaGgufDecoder as LlamaGgufDecoder
    from rase.decoders import Qwen3GgufDecoder as Qwen3GgufDecoder
    from rase.decoders import load_gguf_decoder as load_gguf_decoder
    from rase.device import DevicePreference as DevicePreference
    from rase.device import RuntimeDevice as RuntimeDevice
    from rase.engine.generation import GenerationConfig as GenerationConfig
    from rase.engine.generation import GenerationResult as GenerationResult
    from rase.engine.generation import GenerationStopReason as GenerationStopReason
    from rase.engine.generation import TokenDecoder as TokenDecoder
    from rase.engine.generation import generate as generate
    from rase.engine.generation import generate_with as generate_with
    from rase.errors import *  # noqa: F403
    from rase.model import Answer as Answer
    from rase.model import Model as Model
    from rase.model import load as load
    from rase.profiling import profiling_snapshot as profiling_snapshot
    from rase.registry import HuggingFaceHub as HuggingFaceHub
    from rase.registry import ImportedModel as ImportedModel
    from rase.registry import ModelFormat as ModelFormat
    from rase.registry import ModelKind as ModelKind
    from rase.registry import ModelManifest as ModelManifest
    from rase.session import ModelSession as ModelSession
    from rase.session_cache import SessionCache as SessionCache
    from rase.store import ModelRegistry as ModelRegistry
    from rase.streaming import Stream as Stream
    from rase.text.chat import ChatTemplate as ChatTemplate
    from rase.text.messages import ChatMessage as ChatMessage
    from rase.text.tokenizer import LocalTokenizer as LocalTokenizer

_HOMES = {
    "rase.api": (
        "attach_tokenizer", "generate_chat_registered_gguf", "generate_chat_stream_registered_gguf",
        "generate_llama_gguf", "generate_registered_gguf", "gpu_info", "import_model", "inspect_model",
        "list_models", "probe_runtime", "pull_model", "unload_models", "verify_model",
    ),
    "rase.completion": ("Choice", "Completion", "Piece", "TextRequest"),
    "rase.decoders": ("LlamaGgufDecoder", "Qwen3GgufDecoder", "load_gguf_decoder"),
    "rase.device": ("DevicePreference", "RuntimeDevice"),
    "rase.engine.generation": (
        "GenerationConfig", "GenerationResult", "GenerationStopReason", "TokenDecoder", "generate",
        "generate_with",
    ),
    "rase.errors": (
        "BackendError", "BackendUnavailable", "Cancelled", "ChatTemplateError", "ContextLengthExceeded",
        "CorruptModelFile", "DeadlineExceeded", "DeviceLost", "EngineError", "HubError", "InsufficientMemory",
        "IntegrityMismatch", "InvalidGenerationConfig", "InvalidLogits", "InvalidModelId", "InvalidRequest",
        "InvalidSetting", "ManifestError", "ModelFileNotFound", "ModelNotFound", "NoChatTemplate",
        "ReplicaLost", "ServerBusy", "SessionBusy", "SourceError", "StoreError", "StoreLocked",
        "TokenizerError", "UnsupportedArchitecture", "UnsupportedFormat",
    ),
    "rase.model": ("Answer", "Model", "load"),
    "rase.profiling": ("profiling_snapshot",),
    "rase.registry": ("HuggingFaceHub", "ImportedModel", "ModelFormat", "ModelKind", "ModelManifest"),
    "rase.session": ("ModelSession",),
    "rase.session_cache": ("SessionCache",),
    "rase.store": ("ModelRegistry",),
    "rase.streaming": ("Stream",),
    "rase.text.chat": ("ChatTemplate",),
    "rase.text.messages": ("ChatMessage",),
    "rase.text.tokenizer": ("LocalTokenizer",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # pyright: ignore[reportUnsupportedDunderAll]


def _load(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'rase' has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("rase._kernels"):
            raise
        from rase.errors import BackendUnavailable

        raise BackendUnavailable(
            "rase's kernels are not built", found=f"no module {error.name}",
            hint="Run 'pip install -e .' in the checkout, or install the wheel.",
        ) from error  # fmt: skip
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # type checkers know the names above, and that there are no others
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
