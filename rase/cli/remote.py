"""Ask a server that runs: what ``rase ps`` and ``rase health`` share."""

from __future__ import annotations

from typing import Any

import click

from rase import env
from rase.errors import BackendUnavailable

__all__ = ["get", "unavailable", "url_option"]


def url_option(command: Any) -> Any:
    """Add --url."""

    def chosen(ctx: click.Context, option: click.Parameter, value: str | None) -> str:
        return (value or f"http://127.0.0.1:{env.get('RASE_PORT')}").rstrip("/").removesuffix("/v1")

    return click.option(
        "--url", callback=chosen, help="The server's address.  [default: RASE_PORT of this machine]"
    )(command)


def get(url: str, limit: int = 1 << 20) -> bytes:
    """What a server of ours answers; the first key of RASE_API_KEY goes along.

    Raises ``BackendUnavailable`` where none answers, or not with 200.
    """
    from urllib.request import ProxyHandler, Request, build_opener

    keys = env.get("RASE_API_KEY")
    request = Request(url, headers={"Authorization": f"Bearer {keys[0]}"} if keys else {})
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=5.0) as answer:  # a server is no web page
            found: bytes = answer.read(limit)
            return found
    except (OSError, ValueError) as error:
        raise unavailable(url, str(getattr(error, "reason", error))) from None


def unavailable(url: str, found: str) -> BackendUnavailable:
    """There is no server of ours, or it says no."""
    return BackendUnavailable(
        f"no rase server answers at {url}", found=found[:80],
        hint="Start one with 'rase serve', or name its address with --url.",
    )  # fmt: skip
