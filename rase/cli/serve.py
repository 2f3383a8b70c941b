"""``rase serve``: the HTTP server, or what to install for it."""

from __future__ import annotations

import importlib.util

import click

from rase.cli.common import common_options, device_option, settings

__all__ = ["serve"]

NEEDS = ("starlette", "uvicorn")


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=8080, show_default=True, help="The port; 0 takes any free one.")
@device_option
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further name in the Host header. May be repeated."
)
@click.option(
    "--allow-origin", multiple=True, metavar="URL", help="A web page that may call. May be repeated."
)
@click.option(
    "--keep-alive", metavar="TIME", help="How long a model stays after its last use: 300, 5m, -1 for ever. "
    "Default: RASE_KEEP_ALIVE, else 5m.",
)  # fmt: skip
@click.option(
    "--memory-budget", metavar="SIZE", help="What all weights may take together, such as 12GB; idle models "
    "make room. Default: RASE_MEMORY_BUDGET, else what the machine has.",
)  # fmt: skip
@click.option(
    "--prefix-store", metavar="DIR", help="Keep computed prompts in this folder, so that a restart need not "
    "compute them again. Default: RASE_PREFIX_STORE, else nowhere.",
)  # fmt: skip
@click.option(
    "--prefix-store-size", metavar="SIZE", help="What that folder may take, such as 12GB. Default: "
    "RASE_PREFIX_STORE_SIZE, else 8GB.",
)  # fmt: skip
@click.option(
    "--draft", metavar="ID", help="A small model with the same tokenizer that guesses for each MODEL."
)
@common_options
def serve(
    models: tuple[str, ...], host: str, port: int, device: str, allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...], keep_alive: str | None, memory_budget: str | None,
    prefix_store: str | None, prefix_store_size: str | None, draft: str | None,
) -> int:  # fmt: skip
    """Serve the registered models over the OpenAI API until Ctrl-C.

    A model is loaded by the first request that names it; each MODEL is loaded at once, and stays.

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
    from rase import env
    from rase.server.serve import serve as run
    from rase.session_cache import SessionCache

    cache = SessionCache(
        keep_alive=env.read("RASE_KEEP_ALIVE", keep_alive, "--keep-alive"),
        budget=env.read("RASE_MEMORY_BUDGET", memory_budget, "--memory-budget"),
        prefix_store=env.read("RASE_PREFIX_STORE", prefix_store, "--prefix-store"),
        prefix_store_size=env.read("RASE_PREFIX_STORE_SIZE", prefix_store_size, "--prefix-store-size"),
    )  # fmt: skip
    return run(
        settings().open_store(), cache=cache, models=models, draft=draft, host=host, port=port, device=device,
        allowed_hosts=allow_host, allowed_origins=allow_origin,
    )  # fmt: skip
