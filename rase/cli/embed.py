"""``rase embed``: vectors of texts, one line of JSON each."""

from __future__ import annotations

import json
import sys

import click

from rase.cli.common import common_options, device_option, settings
from rase.cli.progress import Progress

__all__ = ["embed"]

STDIN_LIMIT = 64 << 20  # bytes


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1)
@click.option("--dimensions", type=click.IntRange(1), metavar="N", help="Keep the first N elements.")
@device_option
@common_options
def embed(model: str, texts: tuple[str, ...], dimensions: int | None, device: str) -> None:
    """Print a vector of length 1 for each TEXT, or for each line of stdin.

    MODEL is the id of an embedding model, or a GGUF file of one. Each line of the output is a JSON object
    with index and embedding.
    """
    from rase.model import load

    if not texts:
        text = sys.stdin.buffer.read(STDIN_LIMIT + 1)
        if len(text) > STDIN_LIMIT:
            raise click.UsageError(f"More than {STDIN_LIMIT >> 20} MiB on stdin.")
        texts = tuple(line for line in text.decode("utf-8", "replace").splitlines() if line.strip())
    if not texts:
        raise click.UsageError("There is no text, neither as an argument nor on stdin.")
    with Progress() as progress:
        loaded = load(model, settings().open_store().root, device, progress=progress.stage("load"))
    with loaded:
        for index, text in enumerate(texts):
            (vector,) = loaded.embed(text, dimensions=dimensions).tolist()
            click.echo(json.dumps({"index": index, "embedding": vector}))
