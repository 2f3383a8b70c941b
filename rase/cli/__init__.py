"""The command line: ``rase …`` and ``python -m rase …``.

Answers and results go to stdout, everything else (progress, hints, errors) to stderr. Exit codes: 0 done,
1 failed, 2 usage, 3 not found, 4 a file is not what it should be, 5 too little memory, 6 a source failed,
130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing but a second Ctrl-C raises."""
    from rase.cli.errors import run_guarded

    return run_guarded(arguments)
