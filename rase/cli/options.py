"""Options of the settings: ``setting_options`` makes them of the table in ``rase.settings``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rase import env
from rase.errors import InvalidSetting
from rase.settings import SETTINGS, Setting, option_of

__all__ = ["setting_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


def setting_options(*variables: str) -> Callable[[Command], Command]:
    """Add the option of each of ``variables``; ``env.get`` gives what the user chose."""

    def add(command: Command) -> Command:
        for name in reversed(variables):
            command = _option(name, SETTINGS[name])(command)
        return command

    return add


def _option(name: str, setting: Setting) -> Callable[[Command], Command]:
    def choose(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            try:
                env.choose(name, ",".join(value) if setting.many else str(value))
            except InvalidSetting as error:
                raise click.BadParameter(f"expected {error.expected}, found {error.found}") from None

    flag = isinstance(setting.default, bool)
    declared = option_of(name)
    return click.option(
        f"{declared}/--no-{declared[2:]}" if flag else declared, default=None, multiple=setting.many,
        metavar=None if flag else "VALUE", expose_value=False, callback=choose, help=_help(name, setting),
    )  # fmt: skip


def _help(name: str, setting: Setting) -> str:
    facts = [] if isinstance(setting.default, bool) else [setting.kind]
    if setting.many:
        facts.append("may be repeated")
    if setting.default not in (None, ()):
        facts.append(f"default: {_shown(setting.default)}")
    return f"{setting.meaning}  [{'; '.join([*facts, name])}]"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
