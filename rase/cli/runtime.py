"""``rase runtime probe``: which device would run a model, and whether it computes the right thing."""

from __future__ import annotations

from typing import Any

import click

from rase.cli.common import common_options, device_option, json_option, print_json

__all__ = ["probe"]


@click.command()
@device_option
@json_option
@common_options
def probe(device: str, as_json: bool) -> None:
    """Choose the device and run a small model with a known answer on it."""
    from rase.device import RuntimeDevice

    chosen = RuntimeDevice.select(device)
    chosen.smoke_test()
    facts: dict[str, Any] = {**chosen.describe(), "smoke_test": "passed"}
    if as_json:
        print_json(facts)
    else:
        for key, value in facts.items():
            click.echo(f"{key.replace('_', ' ')}: {str(value).lower() if isinstance(value, bool) else value}")
