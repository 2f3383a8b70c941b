"""Batching: whatever happens around a request, its answer is the one that it has alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from rase.engine.batching import Batching
from rase.engine.config import GenerationConfig
from rase.engine.generation import GenerationStopReason
from rase.engine.kv_cache import PagePool
from rase.engine.observer import Observer
from rase.engine.request import Request
from rase.engine.stepping import Limits
from tests.support.recorder import VOCAB, Recorder, expected

STOP = GenerationStopReason


@dataclass
class Asked:
    """A request and what it got."""

    request: Request
    tokens: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, STOP] = field(default_factory=dict)


class Bench:
    """A ``Batching`` over a recorder, and the requests that it was given."""

    def __init__(self, pages: int = 1000, **options: object) -> None:
        limits = {name: options.pop(name) for name in list(options) if name in Limits.__annotations__}
        self.program = Recorder(**options)
        self.pool = PagePool(self.program, pages * sum(self.program.page_bytes))
        self.seen = Counting()
        self.batching = Batching(self.program, self.pool, VOCAB, Limits(**limits), self.seen)
        self.asked: list[Asked] = []

    def add(self, prompt: list[int], n: int = 1, drafts=None, **config: object) -> Asked:
        config = {"temperature": 0.0, "max_tokens": 8, "top_k": None} | config
        asked = Asked(None)

        def on_token(choice: int, sampled) -> None:
            asked.tokens.setdefault(choice, []).append(sampled.id)

        asked.request = Request(
            prompt, GenerationConfig(**config), n=n, on_token=on_token, drafts=drafts,
            on_choice=lambda choice, reason: asked.reasons.__setitem__(choice, reason),
        )  # fmt: skip
        self.asked.append(asked)
        self.batching.add(asked.request)
        return asked

    def finish(self) -> None:
        for _ in range(20_000):
            if not self.batching.step():
                assert not self.batching.live, "work is left, and nothing is done about it"
                return
            self.check_pages()
        raise AssertionError("it never ends")

    def check(self) -> None:
        """Every request that was not cancelled has the answer that it has alone; the others a part of it."""
        for asked in self.asked:
            request = asked.request
            assert request.done and request.error is None, request.error
            for choice in range(request.n):
                right = expected(self.program, request.prompt, request.config, choice)
                found = asked.tokens.get(choice, [])
                if request.stopped and asked.reasons[choice] is STOP.Cancelled:
                    right = right[: len(found)]
                assert found == right, f"prompt of {len(request.prompt)}, choice {choice}"
                assert choice in asked.reasons

    def check_pages(self) -> None:
        """Each page has exactly the references of the sequences and of the tree that hold it."""
        for group in range(len(self.pool.windows)):
            held: dict[int, int] = {}
            tables = [
                sequence.pages.tables[group]
                for sequences in self.batching.live.values()
                for sequence in sequences
                if sequence.pages is not None
            ]
            nodes = [] if self.batching.tree is None else self.batching.tree._all()
            for page in [page for table in tables for page in table] + [node.pages[group] for node in nodes]:
                held[page] = held.get(page, 0) + 1
            held.pop(-1, None)
            assert len(held) == self.pool.in_use[group]
            assert all(self.pool.references(group, page) == count for page, count in held.items())


class Counting(Observer):
    def __init__(self) -> None:
        self.preemptions = self.evictions = 0
        self.steps: list[tuple[int, int, int]] = []

    def preempted(self, request: Request) -> None:
        self.preemptions += 1

    def evicted(self, pages: int) -> None:
        self.evictions += pages

    def step(self, decode_tokens: int, prompt_tokens: int, sequences: int, seconds: float) -> None:
        self.steps.append((decode_tokens, prompt_tokens, sequences))


def prompt(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def test_one_request_alone():
    bench = Bench()
    asked = bench.add(prompt(70), max_tokens=40, stop_tokens=(3,))
    bench.finish()
    bench.check()
    assert asked.request.cached_tokens == 0 and asked.request.prompted >= asked.request.admitted > 0


def test_requests_share_steps():
    bench = Bench()
    for seed in range(8):
        bench.add(prompt(20 + seed, seed), max_tokens=20)
    bench.finish()
    bench.check()
    assert (8, 0, 8) in bench.seen.steps and len(bench.seen.steps) < 40


def test_choices_share_the_prompt_and_differ():
    bench = Bench()
    asked = bench.add(prompt(70), n=4, temperature=1.0, seed=5, max_tokens=20)
    bench.finish()
    bench.check()
    assert len({tuple(tokens) for tokens in asked.tokens.values()}) == 4
    assert sum(prompt for _, prompt, _ in bench.seen.steps) == 70, "the prompt is computed once"


def test_choices_beyond_the_places_wait_and_are_right():
    bench = Bench(max_batch_seqs=2)
    bench.add(prompt(70), n=5, temperature=1.0, max_tokens=9)
    bench.finish()
    bench.check()


def test_a_second_request_finds_the_prefix_of_the_first():
    bench = Bench()
    bench.add(prompt(100))
    bench.finish()
    again = bench.add(prompt(100))
    other = bench.add([*prompt(96), 1, 2, 3])
    exact = bench.add(prompt(96))
    bench.finish()
    bench.check()
    assert (again.request.cached_tokens, other.request.cached_tokens) == (96, 96)
    assert exact.request.cached_tokens == 64, "one token must be computed for the logits"


def test_prefix_caching_can_be_switched_off():
    bench = Bench(enable_prefix_caching=False)
    for _ in range(2):
        asked = bench.add(prompt(100))
        bench.finish()
    bench.check()
    assert asked.request.cached_tokens == 0 and bench.pool.in_use == (0,)


@pytest.mark.parametrize("alike", [True, False])
def test_an_answer_inside_a_prompt_is_reused_only_where_roles_are_alike(alike):
    bench = Bench(alike=alike)
    first = bench.add(prompt(40), max_tokens=60)
    bench.finish()
    turn = bench.add([*prompt(40), *first.tokens[0], 7])
    bench.finish()
    bench.check()
    assert turn.request.cached_tokens == (96 if alike else 32)


def test_window_pages_in_the_tree_give_hits_and_without_them_none():
    bench = Bench(windows=(None, 40))
    bench.add(prompt(200))
    bench.finish()
    hit = bench.add([*prompt(192), 1])
    bench.finish()
    assert hit.request.cached_tokens == 192
    tree = bench.batching.tree
    for node in tree._all():
        if node.depth == 6:
            bench.pool.release(1, node.pages[1])
            node.pages = (node.pages[0], -1)
    miss = bench.add([*prompt(192), 2])
    bench.finish()
    bench.check()
    assert miss.request.cached_tokens == 160, "the last boundary at which the window is whole"


def test_a_request_that_runs_out_of_pages_gives_way_and_is_right():
    bench = Bench(pages=8)
    asked = [bench.add(prompt(60, seed), max_tokens=100) for seed in range(4)]
    bench.finish()
    bench.check()
    assert bench.seen.preemptions and bench.seen.evictions
    order = sorted(asked, key=lambda one: one.request.ended)
    assert order[0] is asked[0], "the oldest is never preempted"


def test_one_shot_requests_push_out_one_another_and_not_a_long_branch():
    bench = Bench(pages=30)
    long = prompt(500 - 110, 1)
    bench.add(long[:380], max_tokens=1)
    bench.finish()
    for seed in range(2, 60):
        bench.add(prompt(100, seed), max_tokens=2)
        bench.finish()
    found = bench.add([*long[:380], 1], max_tokens=1)
    bench.finish()
    bench.check()
    assert found.request.cached_tokens == 352


def test_decodes_run_in_every_step_and_long_prompts_share():
    bench = Bench(max_batch_tokens=64)
    stream = bench.add(prompt(5), max_tokens=100)
    for _ in range(3):
        bench.batching.step()
    before = len(bench.program.batches)
    long, short = bench.add(prompt(390, 1), max_tokens=1), bench.add(prompt(20, 2), max_tokens=1)
    while not short.request.done:
        count = len(stream.tokens[0])
        bench.batching.step()
        assert len(stream.tokens[0]) == count + 1, "a step without the stream"
    assert not long.request.done and len(bench.program.batches) - before <= 3
    bench.finish()
    bench.check()


def test_cancelled_requests_leave_wherever_they_are():
    bench = Bench(max_batch_seqs=2)
    running, prefilling, queued = (bench.add(prompt(n, n), max_tokens=50) for n in (5, 300, 6))
    for _ in range(3):
        bench.batching.step()
    assert running.tokens and not prefilling.tokens and queued.request.admitted == 0
    for asked in (running, prefilling, queued):
        asked.request.stopped = True
    assert not bench.batching.step()
    assert {asked.reasons[0] for asked in bench.asked} == {STOP.Cancelled}
    bench.batching.tree.clear()
    assert bench.pool.in_use == (0,)
    bench.check()


def test_what_a_callback_raises_ends_its_request_only():
    bench = Bench()
    good, bad = bench.add(prompt(9)), bench.add(prompt(9, 1))

    def on_token(choice: int, sampled) -> None:
        raise ZeroDivisionError

    bad.request.on_token = on_token
    bench.finish()
    assert isinstance(bad.request.error, ZeroDivisionError) and good.request.error is None
    bench.asked.remove(bad)
    bench.check()


def test_a_fault_of_the_program_ends_those_in_the_step_and_later_ones_are_right():
    bench = Bench()
    first = bench.add(prompt(9))
    bench.program.fail = MemoryError()
    bench.finish()
    assert isinstance(first.request.error, MemoryError) and bench.pool.in_use == (0,)
    bench.program.fail = None
    bench.asked.clear()
    bench.add(prompt(9))
    bench.finish()
    bench.check()


class Guess:
    """Drafts that are right for ``right`` tokens, then wrong."""

    def __init__(self, answer: list[int], n_prompt: int, right: int) -> None:
        self.answer, self.n_prompt, self.right = answer, n_prompt, right
        self.told: list[tuple[int, int]] = []

    def propose(self, ids, limit: int) -> list[int]:
        rest = self.answer[len(ids) - self.n_prompt :]
        wrong = [(id + 1) % VOCAB for id in rest[self.right : self.right + 3]]
        return [*rest[: self.right], *wrong][:limit]

    def feedback(self, proposed: int, accepted: int) -> None:
        self.told.append((proposed, accepted))


@pytest.mark.parametrize("right", [0, 1, 5])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "presence_penalty": 1.0}, {"max_tokens": 7}])
def test_drafts_change_how_many_steps_and_nothing_else(right, options):
    for windows in ((None,), (40, None)):
        bench = Bench(windows=windows)
        config = GenerationConfig(**{"temperature": 0.0, "max_tokens": 60, "top_k": None} | options)
        answer = expected(bench.program, prompt(50), config)
        guess = Guess(answer, 50, right)
        bench.add(prompt(50), drafts=lambda guess=guess: guess, max_tokens=config.max_tokens, **{
            name: value for name, value in options.items() if name != "max_tokens"})  # fmt: skip
        bench.finish()
        bench.check()
        assert guess.told and max(accepted for _, accepted in guess.told) == min(right, len(answer) - 1)
        assert len(bench.seen.steps) <= 2 + -(-len(answer) // (right + 1))


REQUESTS = st.tuples(
    st.integers(1, 200),  # length of the prompt
    st.integers(0, 3),  # its seed: a few, so that prefixes are shared
    st.integers(1, 3),  # choices
    st.integers(1, 60),  # max_tokens
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 2),  # drafts that are right
)


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # it takes minutes


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINKING
)  # fmt: skip
@example(
    [(199, 2, 2, 31, 0.0, 0), (199, 2, 2, 31, 0.0, 0), (199, 0, 2, 31, 0.0, 0)], 9, (None,), False, 5, 1, 5
)
@given(
    st.lists(st.one_of(REQUESTS, st.integers(0, 30), st.sampled_from(["cancel", "clear"])), max_size=14),
    st.integers(9, 40),
    st.sampled_from([(None,), (40,), (None, 40)]),
    st.booleans(),
    st.integers(1, 6),
    st.sampled_from([0, 1, 33]),
    st.sampled_from([5, 64, 500]),
)
def test_any_order_of_events_gives_the_answers_of_each_alone(
    events, pages, windows, alike, places, chunk, step
):
    bench = Bench(
        pages, windows=windows, alike=alike, max_batch_seqs=places, chunked_prefill_size=chunk,
        max_batch_tokens=step if step < 500 else None, **{"enable_prefix_caching": pages % 4 != 0},
    )  # fmt: skip
    for number, event in enumerate(events):
        if isinstance(event, tuple):
            length, seed, n, most, temperature, right = event
            config = GenerationConfig(temperature=temperature, max_tokens=most, top_k=None, seed=seed)
            length = min(length, bench.pool.most_tokens - 1)
            answer = expected(bench.program, prompt(length, seed), config) if right else []
            bench.add(
                prompt(200, seed)[:length], n, temperature=temperature, max_tokens=most, seed=seed,
                drafts=(lambda a=answer, p=length, r=right: Guess(a, p, r)) if right else None,
            )  # fmt: skip
        elif event == "cancel" and bench.asked:
            bench.asked[number % len(bench.asked)].request.stopped = True
        elif event == "clear" and bench.batching.tree is not None:
            bench.batching.tree.clear()
        elif isinstance(event, int):
            for _ in range(event):
                bench.batching.step()
                bench.check_pages()
    bench.finish()
    for asked in bench.asked:  # where the budget ends the answer, it is a part of the one alone
        if len(asked.request.prompt) + asked.request.config.max_tokens > bench.pool.most_tokens:
            asked.request.stopped = True
            asked.reasons = dict.fromkeys(asked.reasons, STOP.Cancelled)
    bench.check()
    if bench.batching.tree is not None:
        bench.batching.tree.clear()
    assert set(bench.pool.in_use) == {0}
