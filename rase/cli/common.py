"""What all commands share: --store, --config, --quiet and --debug, and how results are printed."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rase import env

if TYPE_CHECKING:
    from rase.registry import ModelManifest
    from rase.store import ModelRegistry

__all__ = [
    "Settings", "color", "common_options", "device_option", "describe", "hint", "json_option", "names_file",
    "print_json", "print_table", "printable", "settings", "size_text",
]  # fmt: skip

_UNSAFE = {
    code: f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Settings:
    """The common options; one object per call, filled wherever on the line an option stands."""

    quiet: bool = False
    debug: bool = False

    def open_store(self) -> ModelRegistry:
        """Open the store that was chosen."""
        from rase.store import open_store

        return open_store()


def settings() -> Settings:
    """The settings of the running command."""
    return click.get_current_context().ensure_object(Settings)


def _remember(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    if value and option.name == "config":
        env.name_file(value)
    elif value and option.name == "store":
        env.choose("RASE_STORE", value)
    elif value:
        setattr(ctx.ensure_object(Settings), str(option.name), value)
        if option.name == "debug":
            logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
    return value


def common_options(command: Command) -> Command:
    """Add --store, --config, --quiet and --debug, which may stand after any part of the command."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, callback=_remember,
                     help="Show log messages, and the traceback of an error."),
        click.option("--quiet", "-q", is_flag=True, expose_value=False, callback=_remember,
                     help="No progress and no hints."),
        click.option("--config", metavar="FILE", expose_value=False, callback=_remember,
                     help="The configuration file. Default: RASE_CONFIG, else rase.toml of this folder."),
        click.option("--store", metavar="FOLDER", expose_value=False, callback=_remember,
                     help="The model store. Default: RASE_STORE, else the user's data folder."),
    ):  # fmt: skip
        command = option(command)
    return command


def json_option(command: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def device_option(command: Command) -> Command:
    """Add --device."""
    choice = click.Choice(["auto", "cpu", "cuda", "metal", "xpu"])

    def chosen(ctx: click.Context, option: click.Parameter, value: str | None) -> str:
        return value or str(env.get("RASE_DEVICE"))

    return click.option(
        "--device", type=choice, callback=chosen, help="Where to run.  [default: RASE_DEVICE, else auto]"
    )(command)


def names_file(model: str) -> bool:
    """Whether the word for a model is a path and no id of the store: it looks like one, and is there."""
    return (model.endswith(".gguf") or os.sep in model) and os.path.exists(model)


def print_json(value: Any) -> None:
    """Print ``value`` on stdout as indented JSON, in ASCII where stdout is not UTF-8."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    click.echo(json.dumps(value, indent=2, ensure_ascii=encoding != "utf8"))


def printable(text: str, lines: bool = False) -> str:
    """One line of ``text`` in which nothing can move the cursor: paths and files bring any character along.

    Control characters and those that change the direction of writing show as ``\\u001b`` or ``\\u202e``,
    which TOML reads back. ``lines`` keeps the lines and the blanks.
    """
    if lines:
        return "\n".join(line.translate(_UNSAFE) for line in text.split("\n"))
    return " ".join(text.split()).translate(_UNSAFE)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of printable cells on stdout, in columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def color() -> bool | None:
    """For ``click.echo``: False where NO_COLOR is set, None (by terminal) elsewhere."""
    return False if os.environ.get("NO_COLOR") else None


def hint(text: str) -> None:
    """Print a line for a person on stderr, unless --quiet."""
    if not settings().quiet:
        click.echo(printable(text), err=True)


def size_text(count: int | None) -> str:
    """Bytes as people write them."""
    if count is None:
        return "missing"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"


def weights_size(manifest: ModelManifest) -> int | None:
    """Bytes of all weight files, or None when one is absent."""
    try:
        return sum(os.stat(file.path).st_size for file in manifest.weight_files)
    except OSError:
        return None


def describe(manifest: ModelManifest) -> dict[str, Any]:
    """A manifest as JSON: every field, null where it is absent, and the size of the weights in bytes."""
    return {
        "id": manifest.id, "kind": str(manifest.kind), "format": str(manifest.format),
        "weights": manifest.weights, "sha256": manifest.sha256, "size": weights_size(manifest),
        "tokenizer": manifest.tokenizer, "tokenizer_sha256": manifest.tokenizer_sha256,
        "architecture": manifest.architecture,
        "context_length": manifest.context_length, "chat_template": manifest.chat_template,
        "files": [{"path": f.path, "size": f.size, "sha256": f.sha256} for f in manifest.files],
    }  # fmt: skip
