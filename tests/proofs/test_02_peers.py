"""Proofs of list 02 that compare: rase beside llama.cpp and OpenVINO, and beside itself, in turn on one file.

The best llama.cpp setting counts, of both builds with and without flash attention. Each figure says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench import builds
from bench.contest import Contest, Contestant
from bench.models import synthetic
from bench.peers import llamacpp
from rase.backends._threads import physical_cores
from tests.support.gates import until

AMX = "amx_bf16" in Path("/proc/cpuinfo").read_text()
THREADS = min(2, physical_cores())
ROUNDS = {"prefill4096": 1, "decode4096": 2}
TRIES = 3

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]
needs_amx = pytest.mark.skipif(not AMX, reason="this processor has no AMX")
Figure = Callable[[str], None]
Goals = float | tuple[float, float]

RASE = Contestant("rase")
NO_AMX = Contestant("rase-avx512", environment={"RASE_ISA": "avx512"})
AVX2 = Contestant("rase-avx2", environment={"RASE_ISA": "avx2"})


def llama(*names: str) -> list[Contestant]:
    """llama.cpp in these builds, or in all that this processor runs."""
    chosen = names or (("avx512", "amx") if AMX else ("avx512",))
    return [llamacpp(f"llama.cpp-{name}", builds.ensure(name), str(builds.python())) for name in chosen]


def openvino() -> list[Contestant]:
    return [Contestant("openvino", "bench.openvino_worker", str(builds.ensure("openvino")))]


@dataclass(frozen=True)
class Outcome:
    """One comparison: rase's speed, the best of the peers, the goal for the state of the machine."""

    mine: float
    best: float
    who: str
    goal: float
    words: str

    @property
    def ratio(self) -> float:
        return self.mine / self.best


def compare(
    figure: Figure, model: Path, metric: str, ours: Contestant, theirs: list[Contestant], goals: Goals
) -> None:
    """Ours over the best of theirs in ``metric`` reaches the goal, one or (AMX fast, AMX slow)."""

    def attempt() -> Outcome:
        contest = Contest(model, [ours, *theirs], threads=THREADS)
        contest.run([metric], ROUNDS.get(metric, 3))
        _, mine = contest.best(metric, [ours.label])
        who, best = contest.best(metric, [each.label for each in theirs])
        modes = contest.notes.get(ours.label, [])
        goal = goals if isinstance(goals, float) else goals[2 * modes.count("slow") > len(modes)]
        words = contest.facts[ours.label]["class"] + (
            f", AMX {'/'.join(sorted(set(modes)))}" if modes else ""
        )
        return Outcome(mine, best, who, goal, words)

    def show(found: Outcome) -> str:
        return (
            f"{model.stem} {metric}: {found.mine:.1f} tok/s, {found.ratio:.2f} times the {found.best:.1f} of "
            f"{found.who} (goal {found.goal:g}; {ours.label}, {found.words})"
        )

    until(lambda found: found.ratio >= found.goal, attempt, show, figure, TRIES)


def test_decode_of_06b(figure: Figure) -> None:
    compare(figure, synthetic("qwen3-0.6b"), "decode", RASE, llama(), 2.0)


def test_decode_of_smollm2(figure: Figure, smollm2: Path) -> None:
    compare(figure, smollm2, "decode", RASE, llama(), 1.5)


@needs_amx
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-4b"])
def test_prefill_with_amx(figure: Figure, name: str) -> None:
    compare(figure, synthetic(name), "prefill512", RASE, llama(), (4.0, 2.5))


@needs_amx
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-4b"])
def test_prefill_with_amx_beside_openvino(figure: Figure, name: str) -> None:
    compare(figure, synthetic(name), "prefill512", RASE, openvino(), (1.8, 1.2))


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-4b"])
def test_prefill_without_amx(figure: Figure, name: str) -> None:
    compare(figure, synthetic(name), "prefill512", NO_AMX, llama("avx512"), 1.8)


def test_prefill_of_4096(figure: Figure) -> None:
    compare(figure, synthetic("qwen3-0.6b"), "prefill4096", RASE, llama(), 4.0)


def test_decode_at_4096(figure: Figure) -> None:
    compare(figure, synthetic("qwen3-0.6b"), "decode4096", RASE, llama(), 2.0)


def test_avx2_beside_avx512(figure: Figure) -> None:
    compare(figure, synthetic("qwen3-0.6b"), "decode", AVX2, [NO_AMX], 0.7)


def test_batches_of_sequences(figure: Figure) -> None:
    metrics = ["batch1", "batch4", "batch8"]

    def attempt() -> tuple[float, float]:
        contest = Contest(synthetic("qwen3-0.6b"), [RASE], threads=THREADS)
        contest.run(metrics, 4)
        one, four, eight = (contest.best(metric, ["rase"])[1] for metric in metrics)
        return four / one, eight / one

    until(
        lambda found: found[0] >= 3 and found[1] >= 4.5,
        attempt,
        lambda found: (
            f"decode of 4 sequences {found[0]:.2f} times one, of 8 {found[1]:.2f} times (goals 3, 4.5)"
        ),
        figure,
        TRIES,
    )


def test_load_and_memory_of_4b(figure: Figure) -> None:
    loads(figure, synthetic("qwen3-4b"), 3.0)


def test_memory_of_06b(figure: Figure) -> None:
    loads(figure, synthetic("qwen3-0.6b"), 3.0)


def loads(figure: Figure, model: Path, goal: float) -> None:
    """Load with verification from the page cache in ``goal`` seconds; peak at most 1.15 x file + 200 MB."""
    size = model.stat().st_size / 1e6

    def attempt() -> tuple[float, float]:
        contest = Contest(model, [RASE], threads=THREADS)
        contest.run(["load", "memory"], 3)
        return contest.best("load", ["rase"])[1], contest.best("memory", ["rase"])[1]

    until(
        lambda found: found[0] <= goal and found[1] <= 1.15 * size + 200,
        attempt,
        lambda found: f"{model.stem}: loaded and verified in {found[0]:.2f} s (goal {goal:g}); peak "
        f"{found[1]:.0f} MB of a file of {size:.0f} MB (goal {1.15 * size + 200:.0f})",
        figure,
        TRIES,
    )  # fmt: skip
