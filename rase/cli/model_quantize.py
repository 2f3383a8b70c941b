"""``rase model quantize``: a float model to a smaller GGUF file."""

from __future__ import annotations

import os
import shlex
import time

import click

from rase.cli.common import common_options, hint, json_option, print_json, printable, settings, size_text
from rase.cli.progress import Progress

__all__ = ["quantize_model"]


@click.command("quantize")
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "--to", "mix", type=click.Choice(["Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"]), default="Q4_K_M",
    show_default=True, help="The format, or mix of formats.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Default: all processors.")
@click.option("--overwrite", is_flag=True, help="Replace TARGET where it exists.")
@json_option
@common_options
def quantize_model(
    source: str, target: str, mix: str, threads: int | None, overwrite: bool, as_json: bool
) -> None:
    """Write the model SOURCE (F32, F16 or BF16) to the GGUF file TARGET, quantized.

    SOURCE is a GGUF file, a folder in the layout of transformers, or an id of the store.

    TARGET appears when it is complete; an interrupted run leaves nothing.
    """
    from rase.convert import has_vocabulary, quantize_gguf

    start, weights = time.monotonic(), _weights(source)
    with Progress() as progress:
        size = quantize_gguf(
            weights,
            target,
            mix,
            threads=threads,
            overwrite=overwrite,
            progress=progress.stage("quantize"),
        )
    tokenizer = os.path.join(weights, "tokenizer.json")
    left_out = os.path.isfile(tokenizer) and not has_vocabulary(target)
    if as_json:
        print_json({"target": target, "format": mix, "size": size, "tokenizer_left_out": left_out})
        return
    click.echo(printable(f"wrote {target}: {mix}, {size_text(size)}, in {time.monotonic() - start:.0f} s"))
    if left_out:
        attach = f"rase model import {shlex.quote(target)} --tokenizer {shlex.quote(tokenizer)}"
        click.echo(printable(f"The file has no tokenizer: GGUF cannot say what {tokenizer} says."), err=True)
        hint(f"Try: {attach}")
        return
    hint(f"Try: rase model import {shlex.quote(target)}")


def _weights(source: str) -> str:
    """Where the weights of ``source`` lie."""
    if not os.path.lexists(source):
        store = settings().open_store()
        if source in store.ids():
            return store.get(source).weights
    return source
