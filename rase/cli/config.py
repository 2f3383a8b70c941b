"""``rase config``: what is set, and who says so."""

from __future__ import annotations

import os
from typing import Any

import click

from rase import env
from rase.cli.common import common_options, hint, json_option, print_json, print_table, printable
from rase.configfile import nearest
from rase.settings import SETTINGS, key_of

__all__ = ["path", "show"]


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also what nothing sets, with its default.")
@json_option
@common_options
def show(everything: bool, as_json: bool) -> None:
    """Print the settings that count, and where each comes from.

    An option of the command counts first, then the environment, the configuration file of this folder (or
    the one that --config or RASE_CONFIG names), the user's own, and the default.
    """
    found = {name: env.find(name) for name in SETTINGS}
    if as_json:
        print_json([_describe(name, *found[name]) for name in SETTINGS])
    else:
        rows = [
            (key_of(name) or name, printable(_text(name, value)), printable(source))
            for name, (value, source) in found.items()
            if everything or source != "default"
        ]
        if rows:
            print_table([("KEY", "VALUE", "FROM"), *rows])
        else:
            hint("Everything has its default; --all lists it.")
    for name in sorted(os.environ):
        near = nearest(name, [known.lower() for known in SETTINGS]) if name.startswith("RASE_") else None
        if near and name not in SETTINGS and name != "RASE_CONFIG":
            hint(f"The variable {name} is not known. Did you mean {near.upper()}?")


@click.command()
@common_options
def path() -> None:
    """Print the configuration files, the one that counts first, and whether each is there."""
    print_table([(printable(str(file)), "" if there else "(not there)") for file, there in env.files()])


def _text(name: str, value: Any) -> str:
    if SETTINGS[name].secret and value:
        return "(set)"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _describe(name: str, value: Any, source: str) -> dict[str, Any]:
    """One setting as JSON; a time for ever is -1, a secret is never shown."""
    setting = SETTINGS[name]
    plain = [-1 if item == float("inf") else item for item in (value, setting.default)]
    return {
        "key": key_of(name), "variable": name, "value": None if setting.secret else plain[0], "from": source,
        "default": plain[1], "expected": setting.kind, "meaning": setting.meaning,
    }  # fmt: skip
