"""``rase serve``: the HTTP server, or what to install for it."""

from __future__ import annotations

import importlib.util

import click

from rase import env
from rase.cli.common import common_options, device_option, settings
from rase.cli.options import setting_options

__all__ = ["serve"]

NEEDS = ("starlette", "uvicorn", "prometheus_client")


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@setting_options(
    "RASE_HOST", "RASE_PORT", "RASE_DRAFT", "RASE_API_KEY_FILE", "RASE_INSECURE", "RASE_ALLOW_HOST",
    "RASE_ALLOW_ORIGIN", "RASE_MAX_QUEUE", "RASE_MAX_BODY", "RASE_REQUEST_TIMEOUT", "RASE_DRAIN_TIMEOUT",
    "RASE_LOG_FORMAT", "RASE_OTEL", "RASE_KEEP_ALIVE", "RASE_MAX_LOADED_MODELS", "RASE_MEMORY_BUDGET",
    "RASE_MAX_BATCH_TOKENS", "RASE_MAX_BATCH_SEQS", "RASE_CHUNKED_PREFILL_SIZE", "RASE_MAX_MODEL_LEN",
    "RASE_KV_CACHE", "RASE_KV", "RASE_NUM_BLOCKS", "RASE_PREFIX_CACHING", "RASE_PREFIX_STORE",
    "RASE_PREFIX_STORE_SIZE", "RASE_SPECULATION", "RASE_IGNORE_EOS", "RASE_NUM_THREADS",
    "RASE_NUMERICS", "RASE_PREFILL", "RASE_ISA", "RASE_BACKEND", "RASE_GPU", "RASE_GPU_SOFTWARE",
    "RASE_TORCH_WEIGHTS", "RASE_TENSOR_PARALLEL_SIZE", "RASE_TP_OPERATION_TIMEOUT_SECS",
    "RASE_TP_STARTUP_TIMEOUT_SECS", "RASE_CAPTURE_SIZES",
)  # fmt: skip
@device_option
@common_options
def serve(models: tuple[str, ...], device: str) -> int:
    """Serve the registered models over the OpenAI API until Ctrl-C.

    A model is loaded by the first request that names it; each MODEL is loaded at once, and stays. Options are
    also keys of a rase.toml: `rase config show` says what counts.

    \b
    client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="unused")
    """
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        from rase.errors import BackendUnavailable

        raise BackendUnavailable(
            "the server's packages are not installed", found="no " + ", ".join(absent),
            hint="Install them with: pip install 'rase-llm[server]'",
        )  # fmt: skip
    env.check()
    from rase.server.serve import serve as run

    return run(settings().open_store(), models=models or None, device=device)
