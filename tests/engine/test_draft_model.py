"""Draft models: whatever they guess, the answers are those without; what they cost is weighed."""

from __future__ import annotations

from pathlib import Path

import pytest

import rase
from rase.engine.config import GenerationConfig
from rase.engine.draft_model import SELDOM, DraftModel
from rase.engine.kv_cache import PagePool
from rase.engine.scheduler import Scheduler
from rase.errors import InvalidRequest
from rase.session import ModelSession
from tests.engine.test_batching import Bench, prompt
from tests.support import toys
from tests.support.recorder import Recorder, expected


def scheduler_of(**options: object) -> Scheduler:
    program = Recorder(**options)
    return Scheduler(program, PagePool(program, 1000 * sum(program.page_bytes)))


class Eager(DraftModel):
    """Always proposes, and reads at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, row_cost=0.0, wait=True)

    def _worth(self) -> int:
        return 16


def twin(alike: bool = True) -> Scheduler:
    """The very model: its best tokens are a greedy answer."""
    return scheduler_of(alike=alike)


def other() -> Scheduler:
    """A model that agrees by chance only."""
    return scheduler_of(windows=(40,))


@pytest.mark.parametrize("draft", [twin, other])
@pytest.mark.parametrize("config", [
    {}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.7, "n": 3}, {"repetition_penalty": 1.3},
    {"stop_tokens": (3, 7)},
])  # fmt: skip
def test_answers_are_those_without_drafts(draft, config: dict[str, object]) -> None:
    bench, scheduler = Bench(), draft()
    asked = bench.add(prompt(70), max_tokens=60, drafts=lambda: Eager(scheduler), **config)
    bench.finish()
    bench.check()
    assert asked.request.drafted > 0
    if draft is twin and not config:
        assert asked.request.accepted == asked.request.drafted and len(bench.seen.steps) < 12


def test_it_follows_what_the_large_model_takes_and_forgets_what_it_refuses() -> None:
    scheduler = other()
    draft, ids = Eager(scheduler), prompt(70)
    for number in range(30):
        config = GenerationConfig(temperature=0.0, top_k=None, max_tokens=5)
        found = draft.propose(ids, 5)
        assert found == expected(scheduler.program, ids, config), f"step {number}"
        ids += [*found[: number % 5], (number * 7) % 50]


def test_it_reads_a_prompt_in_the_background() -> None:
    scheduler = twin()
    scheduler.program.pause_s = 0.05
    draft, ids, tries = DraftModel(scheduler, row_cost=0.0), prompt(70), 0
    while not (found := draft.propose(ids, 3)):
        tries += 1
        assert tries < 10**6
    assert tries > 10 and len(found) == 3


def test_where_drafts_do_not_pay_there_are_few() -> None:
    draft = DraftModel(twin(), wait=True)
    for _ in range(100):
        draft.feedback(1, 0)
    ids, proposed = prompt(40), 0
    for _ in range(4 * SELDOM):
        proposed += len(draft.propose(ids, 8))
        ids.append(1)
    assert proposed == 4, "one now and then, to see"
    for _ in range(100):
        draft.feedback(1, 1)
    draft._own_s, draft._step_s = 1.0, 100.0
    assert draft._worth() == 16
    draft._own_s = 90.0
    assert draft._worth() <= 1, "a model that is as slow as the large one helps nobody"


def test_a_draft_model_that_is_gone_costs_its_drafts_only() -> None:
    bench, scheduler = Bench(), twin()
    bench.add(prompt(70), max_tokens=60, drafts=lambda: Eager(scheduler))
    for _ in range(5):
        bench.batching.step()
    scheduler.close()
    bench.finish()
    bench.check()


def test_contexts_that_are_longer_than_the_drafts() -> None:
    bench, scheduler = Bench(), twin()
    scheduler.program.graph.context_length = 100
    bench.add(prompt(70), max_tokens=100, drafts=lambda: Eager(scheduler))
    bench.finish()
    bench.check()


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    words = ["one ", "two ", "three "]
    tokenizer = toys.toy_bpe(words=words)
    big = toys.chain(tmp_path, words, then=words[0], tokenizer=tokenizer, name="big")
    return big, toys.chain(tmp_path, words[:2], then=words[0], tokenizer=tokenizer, name="small")


def test_a_model_is_loaded_with_a_draft_by_name(paths: tuple[Path, Path]) -> None:
    big, small = paths
    plain = rase.load(big)
    right = [plain.complete("Hi ", max_tokens=40, temperature=heat, seed=5) for heat in (0.0, 1.0)]
    model = rase.load(big, draft=small)
    assert [model.complete("Hi ", max_tokens=40, temperature=heat, seed=5) for heat in (0.0, 1.0)] == right
    assert isinstance(model.session.draft, ModelSession) and model.session.draft.holders


def test_a_model_with_other_tokens_and_the_model_itself_are_refused(
    paths: tuple[Path, Path], tmp_path: Path
) -> None:
    session = ModelSession.load_file(paths[0])
    with pytest.raises(InvalidRequest, match="the same tokenizer"):
        session.use_draft(session)
    with pytest.raises(InvalidRequest, match="the same tokenizer"):
        rase.load(paths[0], draft=toys.tiny_llama(tmp_path))
