"""ProgramDecoder: one sequence as a view on a scheduler, whose errors leave no trace."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from rase.backends.base import GENERATED, PROMPT
from rase.backends.reference import ReferenceBackend
from rase.engine.decoder import ProgramDecoder
from rase.engine.generation import GenerationConfig, GenerationStopReason, generate
from rase.engine.kv_cache import PagePool
from rase.engine.scheduler import Limits, Scheduler
from rase.errors import Cancelled, ContextLengthExceeded, InsufficientMemory, InvalidRequest
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3
from tests.support.oracle import oracle
from tests.support.recorder import CONTEXT, VOCAB, Recorder, expected_logits


class Made:
    """A decoder over a recorder."""

    def __init__(self, chunk: int = 0, pages: int = 1000, vocab_size: int | None = None, **options) -> None:
        self.program = Recorder(alike=False)
        self.pool = PagePool(self.program, pages * sum(self.program.page_bytes))
        limits = Limits(chunked_prefill_size=chunk)
        self.scheduler = Scheduler(self.program, self.pool, vocab_size=vocab_size, limits=limits)
        self.decoder = ProgramDecoder(self.scheduler, **options)

    def settled(self) -> tuple[int, ...]:
        """Pages in use once the driver has heard of everything."""
        return self.scheduler.call(lambda: self.scheduler._batching.step() or self.pool.in_use)


def same(row: np.ndarray, program: Recorder, tokens: list[int], n_prompt: int) -> bool:
    return np.array_equal(row, expected_logits(program, tokens, n_prompt))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 65, 200])
@pytest.mark.parametrize("chunk", [0, 1, 7, 32, 1000])
def test_prefill_in_chunks_is_one_prompt(n, chunk):
    made = Made(chunk)
    ids = [(7 * i + 3) % VOCAB for i in range(n)]
    assert same(made.decoder.prefill(ids), made.program, ids, n)
    batches = made.program.batches
    assert made.decoder.length == n and made.settled() == (-(-n // 32),)
    assert np.concatenate([batch.ids for batch in batches]).tolist() == ids
    assert np.concatenate([batch.positions[0] for batch in batches]).tolist() == list(range(n))
    assert all((batch.roles == PROMPT).all() for batch in batches)
    assert max(len(batch.ids) for batch in batches) <= min(chunk or 64, 64)
    assert [len(batch.logits_rows) for batch in batches] == [0] * (len(batches) - 1) + [1]


def test_decode_appends_with_the_generated_role():
    made = Made()
    tokens = [1, 2]
    made.decoder.prefill(tokens)
    for i in range(100):
        row = made.decoder.decode(i % 5)
        tokens.append(i % 5)
        assert same(row, made.program, tokens, 2)
        assert (made.program.batches[-1].roles == GENERATED).all()
    assert made.decoder.length == 102 and made.settled() == (4,)


def test_logits_do_not_change_with_later_calls():
    decoder = Made().decoder
    first = decoder.prefill([1, 2])
    kept = first.copy()
    decoder.decode(5)
    decoder.decode(6)
    assert np.array_equal(first, kept)


def test_a_new_prefill_forgets_the_old_sequence():
    made = Made()
    made.decoder.prefill([9] * 200)
    assert same(made.decoder.prefill([1, 2]), made.program, [1, 2], 2)
    assert made.decoder.length == 2 and made.settled() == (1,)


def test_truncate_keeps_the_prefix_and_frees_the_rest():
    made = Made()
    decoder = made.decoder
    decoder.prefill([1] * 40)
    for _ in range(60):
        decoder.decode(2)
    assert made.settled() == (4,)
    decoder.truncate(40)
    assert decoder.length == 40 and made.settled() == (2,)
    assert same(decoder.decode(5), made.program, [1] * 40 + [5], 40)
    decoder.truncate(32)
    assert made.settled() == (1,) and same(decoder.decode(1), made.program, [1] * 33, 32)
    for bad in (-1, 34):
        with pytest.raises(ValueError, match="truncate"):
            decoder.truncate(bad)
    decoder.close()
    assert made.settled() == (0,)


@pytest.mark.parametrize(
    "ids,found",
    [
        ([], None),
        ([50], "50"),
        ([1, -1], "-1"),
        ([2**40], None),
        (["a"], None),
        ([1.5], None),
        ([[1]], None),
        ([True], None),
    ],
)
def test_prompts_that_are_no_ids_are_refused_and_nothing_is_touched(ids, found):
    made = Made()
    made.decoder.prefill([1, 2, 3])
    count = len(made.program.batches)
    with pytest.raises(InvalidRequest) as caught:
        made.decoder.prefill(ids)
    assert caught.value.param == "prompt" and (found is None or found in str(caught.value))
    assert len(made.program.batches) == count
    assert same(made.decoder.decode(4), made.program, [1, 2, 3, 4], 3)


def test_padding_rows_may_be_read_but_not_exceeded():
    made = Made(vocab_size=40, eos=7)
    assert made.decoder.vocab_size == 40 and made.decoder.eos_token() == 7
    assert same(made.decoder.prefill([45]), made.program, [45], 1)
    with pytest.raises(InvalidRequest):
        made.decoder.decode(50)


def test_the_context_is_a_limit_before_any_compute():
    made = Made()
    with pytest.raises(ContextLengthExceeded) as caught:
        made.decoder.prefill([1] * (CONTEXT + 1))
    assert (caught.value.prompt_tokens, caught.value.context_length) == (CONTEXT + 1, CONTEXT)
    assert made.program.batches == []
    made.decoder.prefill([1] * CONTEXT)
    with pytest.raises(ContextLengthExceeded):
        made.decoder.decode(1)
    assert made.decoder.length == CONTEXT


def test_decode_needs_a_prompt():
    with pytest.raises(InvalidRequest, match="prefill"):
        Made().decoder.decode(1)


class Boom(BaseException):
    pass


@pytest.mark.parametrize("length", [100, 95, 80, 64, 63, 41, 40, 1])
def test_truncate_where_a_window_has_given_back_what_it_would_see_again(length):
    program = Recorder(windows=(None, 40), alike=False)
    decoder = ProgramDecoder(Scheduler(program, PagePool(program, 10**6)))
    ids = [number % 50 for number in range(101)]
    decoder.prefill(ids)
    decoder.truncate(length)
    found = decoder.decode(5)
    assert np.array_equal(found, expected_logits(program, [*ids[:length], 5], length))


def test_an_error_in_prefill_leaves_it_empty_and_usable():
    made = Made(chunk=10)
    made.program.fail = Boom()
    with pytest.raises(Boom):
        made.decoder.prefill([3] * 50)
    assert made.decoder.length == 0 and made.settled() == (0,)
    made.program.fail = None
    assert same(made.decoder.prefill([1, 2]), made.program, [1, 2], 2)


def test_an_error_in_decode_leaves_it_as_it_was():
    made = Made()
    made.decoder.prefill([1] * 32)
    made.program.fail = Boom()
    with pytest.raises(Boom):
        made.decoder.decode(9)
    assert made.decoder.length == 32
    made.program.fail = None
    assert same(made.decoder.decode(2), made.program, [1] * 32 + [2], 32)


def test_running_out_of_pages_in_prefill_and_in_decode():
    made = Made(pages=3)
    with pytest.raises(InsufficientMemory):
        made.decoder.prefill([1] * 97)
    assert made.program.batches == [], "refused before any compute"
    made.decoder.prefill([1] * 96)
    with pytest.raises(InsufficientMemory):
        made.decoder.decode(1)
    assert made.decoder.length == 96
    assert same(made.decoder.prefill([4]), made.program, [4], 1)


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_cancel_is_asked_before_every_chunk(allowed):
    made = Made(chunk=10)
    made.program.pause_s = 0.002
    asked = []
    made.decoder.cancelled = lambda: asked.append(1) or len(asked) > allowed
    with pytest.raises(Cancelled):
        made.decoder.prefill([1] * 400)
    made.settled()
    assert len(made.program.batches) < 40 and made.settled() == (0,) and made.decoder.length == 0


def test_generate_hands_its_hook_to_the_decoder():
    made = Made(chunk=10)
    made.program.pause_s = 0.002
    asked = []
    result = generate(made.decoder, [1] * 390, GenerationConfig(), lambda: asked.append(1) or len(asked) > 3)
    assert (result.tokens, result.stop_reason) == ([], GenerationStopReason.Cancelled)
    assert len(asked) == 4 and len(made.program.batches) < 39


def test_decoders_of_one_scheduler_run_side_by_side():
    made = Made(pages=13)  # too few for all: they preempt one another, and nobody notices
    wrong: list[str] = []

    def work(seed: int) -> None:
        decoder = ProgramDecoder(made.scheduler)
        tokens = np.random.default_rng(seed).integers(0, VOCAB, 100).tolist()
        rows = [decoder.prefill(tokens)]
        for id in range(60):
            rows.append(decoder.decode(id % 7))
            tokens.append(id % 7)
        for at, row in enumerate(rows):
            if not same(row, made.program, tokens[: 100 + at], 100):
                wrong.append(f"seed {seed}, token {at}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and made.settled() == (0,)


def test_an_unused_scheduler_is_freed_with_its_thread():
    made = Made()
    made.decoder.prefill([1, 2])
    scheduler, thread = weakref.ref(made.scheduler), made.scheduler._thread
    assert thread is not None and thread.is_alive()
    del made
    thread.join(10)
    assert not thread.is_alive() and scheduler() is None


@pytest.mark.parametrize("tiny", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
def test_a_real_program_gives_the_logits_of_the_oracle_whatever_came_before(tiny):
    with tiny.compile(ReferenceBackend()) as program:
        limits = Limits(chunked_prefill_size=9)
        scheduler = Scheduler(program, PagePool(program, 64 * sum(program.page_bytes)), limits=limits)
        decoder = ProgramDecoder(scheduler)
        ids, answer = tiny.ids(40), [5, 3, 8]
        whole = oracle(tiny, [*ids, *answer])
        for before in ([], tiny.ids(70, seed=1), ids[:10]):  # what ran before must not show
            if before:
                decoder.prefill(before)
            rows = [decoder.prefill(ids), *(decoder.decode(id) for id in answer)]
            np.testing.assert_allclose(rows, whole[len(ids) - 1 :], rtol=2e-5, atol=2e-5)
        decoder.truncate(len(ids))
        again = [decoder.decode(id) for id in answer]
        assert np.array_equal(again, rows[1:])
