"""``rase ps``: what a running server has loaded."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from rase.cli.common import common_options, hint, json_option, print_json, print_table, printable, size_text
from rase.cli.remote import get, unavailable, url_option

__all__ = ["ps"]


@click.command()
@url_option
@json_option
@common_options
def ps(url: str, as_json: bool) -> None:
    """List the models that a running server has loaded, the last used one first."""
    models = _ask(url + "/v1/ps")
    if as_json:
        print_json(models)
        return
    if not models:
        hint("No model is loaded; the first request for one loads it.")
        return
    table: list[tuple[str, ...]] = [("ID", "DEVICE", "WEIGHTS", "CONTEXT", "REQUESTS", "LEAVES")]
    for model in models:
        row = (
            model["id"], model["device"], size_text(model["weights"]), model["context_length"],
            model["active"], _leaves(model, time.time()),
        )  # fmt: skip
        table.append(tuple(printable(str(value)) for value in row))
    print_table(table)


def _leaves(model: dict[str, Any], now: float) -> str:
    """When the model will be unloaded, in words."""
    if model["expires_at"] is None:
        return "never" if model["pinned"] else "when its memory is needed"
    left = int(model["expires_at"] - now)
    return "in use" if left <= 0 else f"in {left} s" if left < 120 else f"in {left // 60} min"


def _ask(url: str) -> list[dict[str, Any]]:
    """The server's list. Raises ``BackendUnavailable`` when no server of ours answers there."""
    try:
        return [model for model in json.loads(get(url))["data"] if isinstance(model["id"], str)]
    except (ValueError, KeyError, TypeError) as error:
        raise unavailable(url, type(error).__name__) from None
