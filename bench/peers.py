"""rase beside llama.cpp, in turn on the same file; which llama.cpp setting is best, and the ratio.

    python -m bench.peers MODEL.gguf [--peer LABEL=FOLDER ...] [--python INTERPRETER]

A peer is a build of ``llama-cpp-python``: FOLDER holds its package ``llama_cpp``, and INTERPRETER has NumPy.
Without --peer: the builds that ``python -m bench.builds`` has made, and ``llama_cpp`` where this interpreter
finds one. Each build runs with and without flash attention. Values are medians, with the smallest and the
largest in brackets.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from pathlib import Path

from bench import builds
from bench.contest import METRICS, Contest, Contestant

__all__ = ["llamacpp", "table"]

EVERYDAY = "prefill512,decode,batch1,batch2,batch4,batch8,batch16,load,memory"


def llamacpp(label: str, folder: Path | None, python: str = sys.executable) -> Contestant:
    """llama.cpp from the package in ``folder``, or from the interpreter's own."""
    environment = {"PYTHONPATH": str(folder)} if folder else {}
    return Contestant(label, "bench.llamacpp_worker", python, environment)


def table(contest: Contest, ours: list[str], theirs: list[str]) -> str:
    """Each metric: every value of rase, the best of the peers, and how many times better rase is."""
    lines = []
    for name, values in contest.values.items():
        metric = METRICS[name]
        lines.append(f"{name} ({metric.unit})")
        for who, found in values.items():
            lines.append(f"  {who:24} {statistics.median(found):9.1f} [{min(found):.1f} - {max(found):.1f}]")
        if theirs and any(who.split(" ")[0] in theirs for who in values):
            best, value = contest.best(name, theirs)
            for own in ours:
                _, mine = contest.best(name, [own])
                ratio = mine / value if metric.higher else value / mine
                lines.append(f"  {own} is {ratio:.2f} times as good as {best}, the best peer setting")
    company = statistics.median(contest.company) if contest.company else 0.0
    for label, modes in contest.notes.items():
        lines.append(f"{label}: AMX was {'/'.join(sorted(set(modes)))}")
    lines.append(f"other programs used {max(0.0, company):.2f} cores meanwhile (median)")
    return "\n".join(lines)


def _peers(options: argparse.Namespace) -> list[Contestant]:
    if options.peer:
        named = (text.partition("=") for text in options.peer)
        return [llamacpp(label, Path(folder), options.python) for label, _, folder in named]
    found = [llamacpp(label, folder, str(builds.python())) for label, folder in builds.present()]
    if importlib.util.find_spec("llama_cpp") is not None:
        found.append(llamacpp("llama_cpp", None))
    return found


def _ours(options: argparse.Namespace) -> list[Contestant]:
    chosen = [Contestant("rase")]
    for text in options.rase:
        label, _, settings = text.partition(":")
        pairs = (pair.partition("=") for pair in settings.split(","))
        chosen.append(Contestant(label, environment={name: value for name, _, value in pairs}))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="LABEL=FOLDER")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the peers")
    parser.add_argument(
        "--rase",
        action="append",
        default=[],
        metavar="LABEL:VARIABLE=VALUE,...",
        help="rase with these settings too",
    )
    parser.add_argument("--metrics", default=EVERYDAY, help=f"of {','.join(METRICS)}; default: {EVERYDAY}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prio", type=int, default=0, help="real-time priority of the engines")
    parser.add_argument("--lock", type=Path, help="hold this lock while something is measured")
    parser.add_argument("--json", type=Path, help="append the values to this file, one line")
    options = parser.parse_args()
    metrics = options.metrics.split(",")
    if unknown := set(metrics) - METRICS.keys():
        parser.error(f"no metric {', '.join(sorted(unknown))}; there are {', '.join(METRICS)}")
    ours, theirs = _ours(options), _peers(options)
    contest = Contest(
        options.model, [*ours, *theirs], threads=options.threads, prio=options.prio, lock=options.lock
    )  # fmt: skip
    contest.run(metrics, options.rounds)
    print(f"{options.model.name}, {options.threads} threads, {options.rounds} rounds")
    print(table(contest, [each.label for each in ours], [each.label for each in theirs]))
    if options.json:
        with options.json.open("a") as file:
            record = {"model": options.model.name, "values": contest.values, "facts": contest.facts,
                      "machine": contest.notes}  # fmt: skip
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
