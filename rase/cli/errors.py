"""From an exception to one line on stderr and an exit code that scripts can rely on."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from rase import errors

__all__ = ["INTERRUPTED", "exit_code", "run_guarded"]

FAILED, USAGE, NOT_FOUND, INTEGRITY, MEMORY, SOURCE, INTERRUPTED = 1, 2, 3, 4, 5, 6, 130

_CODES: tuple[tuple[type[BaseException], int], ...] = (  # the first that fits counts
    (errors.InvalidRequest, USAGE),
    (errors.InvalidSetting, USAGE),
    (errors.ModelNotFound, NOT_FOUND),
    (errors.ModelFileNotFound, NOT_FOUND),
    (errors.IntegrityMismatch, INTEGRITY),
    (errors.CorruptModelFile, INTEGRITY),
    (errors.ManifestError, INTEGRITY),
    (errors.InsufficientMemory, MEMORY),
    (MemoryError, MEMORY),
    (errors.SourceError, SOURCE),
    (errors.Cancelled, INTERRUPTED),
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def run_guarded(arguments: Sequence[str] | None) -> int:
    """Run the commands; every outcome becomes an exit code, every error one line."""
    from rase.cli.app import rase

    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    try:
        code = rase.main(args=arguments, prog_name="rase", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        _say(_usage(error))
        return USAGE
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, which is not worth a message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except errors.EngineError as error:
        if debug:
            traceback.print_exc()
        _say(str(error))
        return exit_code(error)
    except Exception as error:
        if debug:
            traceback.print_exc()
        hint = "" if debug else " Run the command again with --debug for the details."
        _say(f"{type(error).__name__}: {error}.{hint}")
        return exit_code(error)


def _say(message: str) -> None:
    """One line, whatever the message holds."""
    line = " ".join(message.split())
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style("error: ", fg="red", bold=True) + line, err=True, color=color)


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "rase"
    message = error.format_message()
    return f"{message if message.endswith(('.', '?')) else message + '.'} See '{path} --help'."
