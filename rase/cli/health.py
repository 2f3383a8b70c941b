"""``rase health``: whether a server runs, for containers and scripts."""

from __future__ import annotations

import click

from rase.cli.common import common_options
from rase.cli.remote import get, url_option

__all__ = ["health"]


@click.command()
@click.option("--ready", is_flag=True, help="Whether requests may come, and not only whether it answers.")
@url_option
@common_options
def health(ready: bool, url: str) -> None:
    """Ask a running server how it is: exit code 0 when it is well, else 1 and the reason."""
    get(url + ("/ready" if ready else "/health"))
    click.echo("ready" if ready else "ok")
