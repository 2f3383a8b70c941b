"""Every error that rase raises on purpose, one class per cause.

Each error says what happened, what was expected, what was found and what to do next, and carries the
same facts as data (``error.data``), so that a caller can show them or act on them.

    EngineError
    ├── InvalidRequest                a field or argument that the caller can correct
    │   ├── InvalidGenerationConfig   sampling parameters out of range
    │   ├── InvalidModelId            an id that does not match the allowed pattern
    │   ├── ContextLengthExceeded     prompt longer than the context
    │   ├── ChatTemplateError         the template refused or failed on these messages
    │   └── NoChatTemplate            a chat request for a model without a template
    ├── ModelNotFound                 no manifest with this id
    ├── ModelFileNotFound             a file that a manifest or a caller names is absent
    ├── UnsupportedFormat             file or tensor format that rase does not run
    ├── UnsupportedArchitecture       architecture that rase does not run
    ├── CorruptModelFile              a file that contradicts its own format
    ├── ManifestError                 a manifest that cannot be read or contradicts its file
    ├── IntegrityMismatch             SHA-256 differs from the manifest
    ├── TokenizerError                a tokenizer that cannot be built, or text that it refuses
    ├── SourceError                   a model source (hub, package index, file) failed
    │   └── HubError                  the Hugging Face hub failed
    ├── StoreError                    the model store could not be read or written
    │   └── StoreLocked               another process holds the store's lock
    ├── BackendUnavailable            device, instruction set or extra that is absent here
    ├── BackendError                  a backend failed while running
    │   ├── DeviceLost                its device is gone, and it goes on without
    │   └── ReplicaLost               a process of a cluster is gone, and its requests with it
    ├── InvalidLogits                 the model produced NaN or infinity
    ├── InsufficientMemory            does not fit, with the numbers
    ├── SessionBusy                   the session is in use by the calling thread
    ├── ServerBusy                    the request queue is full
    ├── Cancelled                     the caller gave up before there was a result
    ├── DeadlineExceeded              the request did not end in time
    └── InvalidSetting                an environment variable or option with a bad value
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BackendError", "BackendUnavailable", "Cancelled", "ChatTemplateError", "ContextLengthExceeded",
    "CorruptModelFile", "DeadlineExceeded", "DeviceLost", "EngineError", "HubError", "InsufficientMemory",
    "IntegrityMismatch",
    "InvalidGenerationConfig", "InvalidLogits", "InvalidModelId", "InvalidRequest", "InvalidSetting",
    "ManifestError", "ModelFileNotFound", "ModelNotFound", "NoChatTemplate", "ReplicaLost", "ServerBusy",
    "SessionBusy",
    "SourceError", "StoreError", "StoreLocked", "TokenizerError", "UnsupportedArchitecture",
    "UnsupportedFormat",
]  # fmt: skip


class EngineError(Exception):
    """Base of all errors of rase.

    ``what`` is one clause without a final stop; ``expected`` and ``found`` name the two sides of the
    disagreement; ``hint`` is the next step for the person who reads it. Further keywords become ``data``.
    """

    code = "engine_error"  # stable, snake case: the `code` of an HTTP error body

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
        **data: Any,
    ) -> None:
        self.what, self.expected, self.found, self.hint = what, expected, found, hint
        self.data: dict[str, Any] = data
        sides = []
        if expected is not None:
            sides.append(f"expected {expected}")
        if found is not None:
            sides.append(f"found {found}")
        text = what + (": " + ", ".join(sides) if sides else "")
        super().__init__(text + (f". {hint}" if hint else ""))

    def __reduce__(self) -> tuple[Any, ...]:  # survives pickling (process pools) with its data
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[EngineError], args: tuple[Any, ...], state: dict[str, Any]) -> EngineError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidRequest(EngineError):
    """A field or argument that the caller can correct; ``param`` names it."""

    code = "invalid_request"

    def __init__(self, what: str, *, param: str | None = None, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.param = param


class InvalidGenerationConfig(InvalidRequest):
    """A sampling parameter out of its range."""

    code = "invalid_generation_config"


class InvalidModelId(InvalidRequest):
    """A model id that does not match ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``."""

    code = "invalid_model_id"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the context; raised before any compute."""

    code = "context_length_exceeded"

    def __init__(
        self, prompt_tokens: int, context_length: int, *, param: str | None = None, at_least: bool = False
    ) -> None:
        """``at_least``: the prompt was too long to be worth counting; it has more tokens than stated."""
        count = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        super().__init__(
            f"the prompt has {count} tokens and the model's context is {context_length} tokens",
            hint="Shorten the prompt, or register the model with a larger --context-length, if it has one.",
            param=param,
        )
        self.prompt_tokens, self.context_length = prompt_tokens, context_length


class ChatTemplateError(InvalidRequest):
    """The chat template refused these messages, or failed on them."""

    code = "chat_template_error"


class NoChatTemplate(InvalidRequest):
    """A chat request for a model that has no chat template."""

    code = "no_chat_template"


class ModelNotFound(EngineError):
    """No model with this id in the store."""

    code = "model_not_found"


class ModelFileNotFound(EngineError):
    """A weights or tokenizer file is absent or not a regular file."""

    code = "model_file_not_found"


class UnsupportedFormat(EngineError):
    """A container, version or tensor format that rase does not run."""

    code = "unsupported_format"


class UnsupportedArchitecture(EngineError):
    """An architecture that rase does not run."""

    code = "unsupported_architecture"


class CorruptModelFile(EngineError):
    """A file that contradicts its own format: cut, overlapping, impossible sizes, wrong shapes."""

    code = "corrupt_model_file"


class ManifestError(EngineError):
    """A manifest that cannot be read or that contradicts the file it names."""

    code = "manifest_error"


class IntegrityMismatch(EngineError):
    """The SHA-256 of a file differs from the one in the manifest."""

    code = "integrity_mismatch"

    def __init__(self, id: str, expected: str, actual: str, *, path: str | None = None) -> None:
        super().__init__(
            f"model '{id}': {path or 'a file'} changed since it was registered",
            expected=f"SHA-256 {expected}",
            found=actual,
            hint="Restore the file, or register it again if the change was intended.",
        )
        self.id, self.actual, self.path = id, actual, path
        self.expected = expected


class TokenizerError(EngineError):
    """A tokenizer that cannot be built from its file, or input that it refuses."""

    code = "tokenizer_error"


class SourceError(EngineError):
    """A model source failed: nothing was registered."""

    code = "source_error"


class HubError(SourceError):
    """The Hugging Face hub failed or refused."""

    code = "hub_error"


class StoreError(EngineError):
    """The model store could not be read or written (full disk, rights, read-only)."""

    code = "store_error"


class StoreLocked(StoreError):
    """Another process holds the store's lock."""

    code = "store_locked"


class BackendUnavailable(EngineError):
    """A device, instruction set or optional package that is absent on this machine."""

    code = "backend_unavailable"


class BackendError(EngineError):
    """A backend failed while it was running."""

    code = "backend_error"


class DeviceLost(BackendError):
    """A device failed in this step, and the program goes on without it, in another numerics class.

    Nothing of the step counts, and pages that were written before hold what another arithmetic computed.
    """

    code = "device_lost"


class ReplicaLost(BackendError):
    """A process of a cluster is gone that computed a request; sent again, another one answers the same."""

    code = "replica_lost"


class InvalidLogits(EngineError):
    """The model produced NaN or infinity: no token may be chosen from that."""

    code = "invalid_logits"


class InsufficientMemory(EngineError):
    """Something does not fit into memory; ``needed`` and ``available`` are bytes."""

    code = "insufficient_memory"

    def __init__(self, what: str, *, needed: int, available: int, hint: str | None = None) -> None:
        super().__init__(
            f"{what} needs {needed:,} bytes ({needed / 2**30:.2f} GiB)",
            found=f"{available:,} bytes ({available / 2**30:.2f} GiB) available",
            hint=hint or "Use a smaller quantization or a shorter context, or free memory.",
        )
        self.needed, self.available = needed, available


class SessionBusy(EngineError):
    """The calling thread already uses this session (a callback that generates again)."""

    code = "session_busy"


class ServerBusy(EngineError):
    """The request queue is full; ``retry_after`` is in seconds."""

    code = "server_busy"

    def __init__(self, what: str, *, retry_after: float = 1.0, **facts: Any) -> None:
        super().__init__(what, **facts)
        self.retry_after = retry_after


class Cancelled(EngineError):
    """The caller's ``cancelled`` hook returned true before there was a result (a load, a wait)."""

    code = "cancelled"


class DeadlineExceeded(EngineError):
    """The deadline of a request passed before it had ended; ``late_s`` says by how many seconds."""

    code = "deadline_exceeded"


class InvalidSetting(EngineError):
    """An environment variable or configuration option with a bad value."""

    code = "invalid_setting"
