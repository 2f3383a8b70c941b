"""Decoders straight from a GGUF file, without a store, a tokenizer or a session: token ids in, logits out."""

from __future__ import annotations

import os
from typing import ClassVar, Self

from rase.device import DevicePreference, RuntimeDevice
from rase.engine.decoder import ProgramDecoder
from rase.engine.generation import TokenDecoder
from rase.engine.scheduler import Scheduler
from rase.errors import ManifestError, UnsupportedArchitecture
from rase.loading import close_with, load_program

__all__ = ["GgufDecoder", "LlamaGgufDecoder", "Qwen3GgufDecoder", "load_gguf_decoder"]

Device = DevicePreference | RuntimeDevice | str


class GgufDecoder(ProgramDecoder):
    """A ``TokenDecoder`` that owns its program; the memory is freed with the object."""

    architecture: ClassVar[str | None] = None

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: Device = DevicePreference.Auto, *,
        architecture: str | None = None,
    ) -> Self:  # fmt: skip
        """Load the file ``path``; nothing vouches for its hash.

        Raises ``UnsupportedArchitecture`` when the file is of another architecture than the class, and what
        ``ModelSession.load`` raises for bad files and missing memory.
        """
        chosen = RuntimeDevice.select(device)
        try:
            loaded = load_program(path, chosen, architecture=architecture or cls.architecture)
        except ManifestError as error:  # there is no manifest here: what contradicts the file is the caller
            raise UnsupportedArchitecture(
                f"file '{os.fspath(path)}'", expected=error.expected, found=error.found,
                hint="Load it with the decoder of its own architecture.") from None  # fmt: skip
        eos = loaded.metadata.get("tokenizer.ggml.eos_token_id")
        vocab = loaded.metadata.get("tokenizer.ggml.tokens")
        scheduler = Scheduler(
            loaded.program, loaded.pool, vocab_size=None if vocab is None else len(vocab), name="the decoder"
        )
        close_with(scheduler, loaded.program)
        return cls(scheduler, eos)


class LlamaGgufDecoder(GgufDecoder):
    """Llama 2 and 3, Mistral and everything else that GGUF files call ``llama``."""

    architecture = "llama"


class Qwen3GgufDecoder(GgufDecoder):
    """Qwen3."""

    architecture = "qwen3"


def load_gguf_decoder(
    architecture: str, weights: str | os.PathLike[str], device: Device = DevicePreference.Auto
) -> TokenDecoder:
    """Load ``weights`` as the registered ``architecture`` (a name or alias such as ``llama3``).

    Raises ``UnsupportedArchitecture`` for a name that rase does not run, and for a file of another one.
    """
    if not architecture:
        raise UnsupportedArchitecture("no architecture given", hint="Name one, for example 'qwen3'.")
    return GgufDecoder.load(weights, device, architecture=architecture)
