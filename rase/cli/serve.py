"""``rase serve``: the HTTP server, or what to install for it."""

from __future__ import annotations

import importlib.util

import click

from rase.cli.common import common_options, device_option, settings

__all__ = ["serve"]

NEEDS = ("starlette", "uvicorn", "sse_starlette")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=8080, show_default=True, help="The port; 0 takes any free one.")
@device_option
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further name in the Host header. May be repeated."
)
@click.option(
    "--allow-origin", multiple=True, metavar="URL", help="A web page that may call. May be repeated."
)
@common_options
def serve(
    host: str, port: int, device: str, allow_host: tuple[str, ...], allow_origin: tuple[str, ...]
) -> int:
    """Serve the registered models over the OpenAI API until Ctrl-C.

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
    from rase.server.serve import serve as run

    return run(
        settings().open_store(), host=host, port=port, device=device, allowed_hosts=allow_host,
        allowed_origins=allow_origin,
    )  # fmt: skip
