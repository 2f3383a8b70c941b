"""Batching and the decoder over a model with recurrent states: answers are those that a request has alone."""

from __future__ import annotations

import pytest

from rase.backends import get_backend
from rase.backends.base import CompileOptions
from rase.engine.batching import Batching
from rase.engine.config import GenerationConfig
from rase.engine.decoder import ProgramDecoder
from rase.engine.kv_cache import OutOfPages, PagePool, SequencePages
from rase.engine.observer import Observer
from rase.engine.request import Request
from rase.engine.scheduler import Limits, Scheduler
from rase.testing.programs import assert_same_bits, decode_each, run_chunks
from rase.testing.tiny import ZOO

TINY = ZOO["qwen35"].but(n_layers=4, vocab=37)
LONG, SHORT, OTHER = TINY.ids(110, 1), TINY.ids(9, 2), TINY.ids(70, 3)


@pytest.fixture
def program():
    options = CompileOptions(max_batch_tokens=64, numerics="portable", threads=1)
    with get_backend("cpu").compile(TINY.graph(), TINY.source, options) as program:
        yield program


def fresh():
    return TINY.compile(get_backend("cpu"), numerics="portable", threads=1)


def alone(prompt, count):
    """The greedy answer, token by token, without an engine."""
    tokens = list(prompt)
    with fresh() as program:
        rows = run_chunks(program, tokens)
        while len(tokens) < len(prompt) + count:
            tokens.append(int(rows[-1].argmax()))
            rows = decode_each(program, tokens[-1:], start=len(tokens) - 1)
    return tokens[len(prompt) :]


class Bench:
    def __init__(self, program, pages=64, **limits):
        self.pool = PagePool(program, pages * sum(program.page_bytes))
        self.batching = Batching(program, self.pool, TINY.vocab, Limits(**limits), Observer())

    def ask(self, prompt, count=6, **options):
        tokens = {}
        request = Request(
            prompt, GenerationConfig(temperature=0.0, max_tokens=count, top_k=None),
            on_token=lambda choice, sampled: tokens.setdefault(choice, []).append(sampled.id), **options,
        )  # fmt: skip
        self.batching.add(request)
        return request, tokens

    def finish(self, *asked):
        while self.batching.step():
            pass
        for request, tokens in asked:
            assert request.error is None, request.error
            for choice in range(request.n):
                assert tokens[choice] == alone(request.prompt, request.config.max_tokens)


@pytest.mark.parametrize("chunk", [0, 7, 33])
def test_answers_in_company_are_those_alone(program, chunk):
    bench = Bench(program, chunked_prefill_size=chunk)
    bench.finish(bench.ask(LONG), bench.ask(SHORT, 40), bench.ask(OTHER, n=2))


def test_a_prefix_is_found_where_its_states_were_kept(program):
    bench = Bench(program)
    bench.finish(bench.ask(LONG))
    again, longer, apart = bench.ask(LONG), bench.ask(LONG[:100] + SHORT), bench.ask(LONG[:50])
    bench.finish(again, longer, apart)
    # The prompt ran as 64 and 46 tokens: states were kept after 32, 64 and 96.
    assert [each[0].cached_tokens for each in (again, longer, apart)] == [96, 96, 32]


class Guesses:
    """Proposes the right answer up to a length that changes, then what is never right."""

    def __init__(self, prompt, answer, rights=(0, 3, 1, 5, 2)):
        self.prompt, self.answer, self.rights, self.asked = prompt, answer, rights, 0

    def propose(self, ids, limit):
        said = len(ids) - len(self.prompt)
        right = self.rights[self.asked % len(self.rights)]
        self.asked += 1
        drafts = self.answer[said : said + right]
        following = self.answer[said + right : said + right + 1] or [0]
        return [*drafts, (following[0] + 1) % TINY.vocab, 1, 2][:limit]

    def feedback(self, proposed, accepted):
        pass


class Steps(Observer):
    """Counts the tokens of prompts."""

    prompt = 0

    def step(self, decode_tokens, prompt_tokens, sequences, seconds):
        self.prompt += prompt_tokens


@pytest.mark.parametrize("prompt", [LONG, SHORT, OTHER, TINY.ids(63, 4), TINY.ids(64, 5)], ids=len)
def test_drafts_change_no_answer(program, prompt):
    """Wrong after some that are right, anywhere in a page; all right; never right."""
    answer, bench = alone(prompt, 80), Bench(program)
    for rights in ((0, 3, 1, 5, 2), (0,), (40,)):
        steps = bench.batching.observer = Steps()
        request, tokens = bench.ask(prompt, 80, drafts=lambda r=rights: Guesses(prompt, answer, r))
        while bench.batching.step():
            pass
        assert request.error is None and tokens[0] == answer
        assert request.drafted > 0 and (request.accepted > 20) == (rights != (0,))
        assert steps.prompt == len(prompt), "what runs again is no prompt"
        bench.batching.tree.clear()
        assert set(bench.pool.in_use) == {0}, "pages are lost"


def test_drafts_in_company_and_with_few_pages(program):
    answers = [(prompt, n, alone(prompt, 40)) for prompt, n in ((LONG, 1), (OTHER, 2), (SHORT, 1))]
    for pages in (64, 12):
        bench = Bench(program, pages=pages)
        asked = [
            bench.ask(prompt, 40, n=n, drafts=lambda p=prompt, a=answer: Guesses(p, a))
            for prompt, n, answer in answers
        ]
        bench.finish(*asked)
        assert any(request.accepted for request, _ in asked)


def test_without_a_page_for_the_states_there_are_no_drafts(program, monkeypatch):
    def full(pages, length):
        raise OutOfPages("no page", needed=1, available=0)

    monkeypatch.setattr(SequencePages, "keep_states", full)
    bench = Bench(program)
    asked = bench.ask(LONG, 20, drafts=lambda: Guesses(LONG, alone(LONG, 20)))
    bench.finish(asked)
    assert asked[0].drafted == 0


def test_a_preempted_sequence_goes_on_as_it_would_have(program):
    bench = Bench(program, pages=9)
    bench.finish(bench.ask(LONG, 40), bench.ask(OTHER, 40))


@pytest.mark.parametrize("length", [119, 111, 110, 100, 96, 64, 63, 1])
def test_a_decoder_that_is_cut_back_computes_from_where_states_stand(program, length):
    pool = PagePool(program, 64 * sum(program.page_bytes))
    decoder = ProgramDecoder(Scheduler(program, pool, vocab_size=TINY.vocab))
    answer = alone(LONG, 12)
    decoder.prefill(LONG)
    for id in answer[:9]:
        decoder.decode(id)
    decoder.truncate(length)
    found = decoder.decode(5)
    whole = ([*LONG, *answer[:9]])[:length]
    with fresh() as other:
        expected = run_chunks(other, [*whole, 5])[-1]
    assert_same_bits(found, expected, f"cut to {length}")
    decoder.close()


def test_a_long_answer_gives_back_its_own_snapshots_before_those_of_others(program):
    bench = Bench(program, pages=20)
    keys, snapshots = (bench.pool.capacity[bench.pool.states.index(state)] for state in (False, True))
    assert snapshots < keys - 4, "the answer has fewer snapshots than it would make, and room for its keys"
    for _ in range(2):
        bench.finish(bench.ask(LONG))
    request, _ = bench.ask(OTHER, count=32 * (keys - 6))
    while bench.batching.step():
        pass
    assert request.error is None
    again = bench.ask(LONG)
    bench.finish(again)
    assert again[0].cached_tokens == 96
