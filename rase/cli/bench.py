"""``rase bench``: prefill and decode of one model, beside the limits of the machine."""

from __future__ import annotations

import time

import click

from rase.cli.common import common_options, device_option, hint, json_option, print_json, settings
from rase.cli.load import load_session

__all__ = ["bench"]


@click.command()
@click.argument("model")
@click.option(
    "--prompt", "prompts", type=int, multiple=True, default=(512,), show_default=True, metavar="N",
    help="Tokens of a prompt to time. May be repeated.",
)  # fmt: skip
@click.option(
    "--context", "contexts", type=int, multiple=True, default=(128,), show_default=True, metavar="N",
    help="Tokens that stand before those that are generated. May be repeated.",
)  # fmt: skip
@click.option("--tokens", type=int, default=64, show_default=True, help="Tokens to generate in a round.")
@click.option("--rounds", type=int, default=5, show_default=True, help="How often each is measured.")
@click.option(
    "--plot", metavar="FILE", help="Draw a roofline to this file (.png, .svg, .pdf); needs the extra 'plot'."
)
@device_option
@json_option
@common_options
def bench(
    model: str, prompts: tuple[int, ...], contexts: tuple[int, ...], tokens: int, rounds: int,
    plot: str | None, device: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure the prefill and decode speed of MODEL, and how near it is to what the machine can do.

    MODEL is an id of the store or a GGUF file. Speeds are medians, with the slowest and the fastest round;
    GB/s counts the bytes of the file that a token reads. The machine's limits are measured in the same run,
    with the same threads. Leave the machine alone meanwhile: other work lowers every number.
    """
    from rase.benchmark import report as text
    from rase.benchmark.speeds import measure

    if plot is not None:
        from rase.benchmark import roofline

        roofline.check(plot)
    start = time.perf_counter()
    session = load_session(settings().open_store(), model, device)
    seconds = time.perf_counter() - start
    found = measure(
        session, prompts=prompts, contexts=contexts, tokens=tokens, rounds=rounds, load_s=seconds, say=hint
    )  # fmt: skip
    if as_json:
        print_json(found.to_json())
    else:
        for line in text.lines(found):
            click.echo(line)
    if plot is not None:
        roofline.draw(found, plot)
        hint(f"drew {plot}")
