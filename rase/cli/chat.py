"""The chat on a terminal: lines that begin with '/' are commands, everything else goes to the model."""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING

import click

from rase.cli.answer import Asker, stats_line
from rase.cli.common import hint, printable
from rase.cli.errors import INTERRUPTED
from rase.errors import ContextLengthExceeded, InsufficientMemory, InvalidRequest

if TYPE_CHECKING:
    from rase.completion import ChatMessage, Completion

__all__ = ["Chat"]

COMMANDS = {
    "/clear": "forget the conversation",
    "/system": "TEXT: tell the model who it is, and begin again; without TEXT show it",
    "/stats": "tokens and speed of the last answer",
    "/help": "this list",
    "/bye": "leave, as Ctrl-D does",
}
_ALSO = {"/?": "/help", "/exit": "/bye", "/quit": "/bye"}


class Chat:
    """A conversation. Ctrl-C ends an answer and comes back to the prompt; a second one there leaves."""

    def __init__(self, asker: Asker, system: str | None, stats: bool) -> None:
        self.asker, self.system, self.stats = asker, system, stats
        self.messages: list[ChatMessage] = []
        self.last: Completion | None = None

    def loop(self) -> int:
        """Read and answer until the end; return the exit code."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing and history for input()
        hint(f"{self.asker.session.id}: /help lists the commands, Ctrl-D leaves.")
        interrupted = False
        while True:
            try:
                line = self._read()
            except EOFError:
                click.echo()
                return 0
            except KeyboardInterrupt:
                click.echo()
                if interrupted:
                    return INTERRUPTED
                interrupted = True
                hint("Once more Ctrl-C, Ctrl-D or /bye leaves.")
                continue
            interrupted = False
            if not line.strip():
                continue
            if line.startswith("/"):
                if self._command(line):
                    return 0
            else:
                self._say(line)

    def _read(self) -> str:
        line = input(">>> ")
        if not line.startswith('"""'):
            return line
        lines = [line[3:]]  # three quotes begin and end a text of several lines
        while not lines[-1].rstrip().endswith('"""'):
            lines.append(input("... "))
        lines[-1] = lines[-1].rstrip()[:-3]
        return "\n".join(lines).strip("\n")

    def _command(self, line: str) -> bool:
        """Run a command; True ends the chat."""
        word, _, rest = line.strip().partition(" ")
        name = _ALSO.get(word, word)
        if name == "/bye":
            return True
        if name == "/clear":
            self.messages.clear()
        elif name == "/system":
            if rest.strip():
                self.system = rest.strip()
                self.messages.clear()
            else:
                click.echo(self.system or "(none)", err=True)
        elif name == "/stats":
            click.echo(stats_line(self.last) if self.last else "No answer yet.", err=True)
        elif name == "/help":
            click.echo("\n".join(f"{name:<8} {text}" for name, text in COMMANDS.items()), err=True)
            click.echo('"""      begins and ends a text of several lines', err=True)
        else:
            near = difflib.get_close_matches(word, COMMANDS, n=1)
            click.echo(
                f"No command {word}." + (f" Did you mean {near[0]}?" if near else " See /help."), err=True
            )
        return False

    def _say(self, text: str) -> None:
        from rase.completion import ChatMessage

        system = [ChatMessage("system", self.system)] if self.system else []
        said = [*self.messages, ChatMessage("user", text)]
        try:
            self.last = self.asker.ask([*system, *said])
        except ContextLengthExceeded as error:
            click.echo(f"error: {error.what}. /clear begins a new conversation.", err=True)
            return
        except (InvalidRequest, InsufficientMemory) as error:
            click.echo(printable(f"error: {error}"), err=True)
            return
        if self.last.text or self.last.choices[0].finish_reason != "cancelled":
            self.messages = [*said, ChatMessage("assistant", self.last.text)]
        if self.last.choices[0].finish_reason == "cancelled":
            hint("(stopped)")
        if self.stats:
            click.echo(stats_line(self.last), err=True)
