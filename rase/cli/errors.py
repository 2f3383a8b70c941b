"""From an exception to one line on stderr and an exit code that scripts can rely on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from rase import env, errors

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
    _prepare_streams()
    try:
        with env.command():
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
        if isinstance(error, OSError) and error.filename is None and error.strerror:  # our output
            _say(f"the output could not be written: {error.strerror}")
            return FAILED
        hint = "" if debug else " Run the command again with --debug for the details."
        _say(f"{type(error).__name__}: {error}.{hint}")
        return exit_code(error)


def _prepare_streams() -> None:
    """Make the standard streams what the commands expect: there, and able to take any character.

    A stream that was closed (``>&-``) is None, and its descriptor would go to the next file that is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _say(message: str) -> None:
    """One line, whatever the message holds."""
    from rase.cli.common import color, printable

    with contextlib.suppress(OSError):  # nobody reads stderr: the exit code has to do
        click.echo(click.style("error: ", fg="red", bold=True) + printable(message), err=True, color=color())


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "rase"
    message = error.format_message()
    return f"{message if message.endswith(('.', '?')) else message + '.'} See '{path} --help'."
