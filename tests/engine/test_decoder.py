"""ProgramDecoder: batches, pages and lengths, and that no error leaves a trace."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rase.backends.base import GENERATED, PROMPT, Batch, Program
from rase.backends.reference import ReferenceBackend
from rase.engine.decoder import ProgramDecoder
from rase.engine.generation import GenerationConfig, GenerationStopReason, generate
from rase.engine.kv_cache import PagePool
from rase.errors import Cancelled, ContextLengthExceeded, InsufficientMemory, InvalidRequest
from tests.support.tiny import TINY_LLAMA, TINY_QWEN3

VOCAB, CONTEXT = 50, 400


class Recorder(Program):
    """A program that stores ids in its pages, and answers with the sum of what the page table shows.

    Its logits after position p are onehot(sum of ids 0..p mod VOCAB): any page, length or order that is wrong
    shows in the answer.
    """

    def __init__(self, max_batch_tokens: int = 64, page_bytes: int = 10) -> None:
        full = SimpleNamespace(kind="full", window=None)
        self.graph = SimpleNamespace(vocab_size=VOCAB, context_length=CONTEXT, caches=(full,))
        self.max_batch_tokens, self.page_bytes = max_batch_tokens, (page_bytes,)
        self.reserved_pages = (0,)
        self.numerics_class = "recorder"
        self.store = np.zeros((0, self.page_tokens), np.int64)
        self.batches: list[Batch] = []
        self.fail: BaseException | None = None

    def reserve_pages(self, n: int, group: int | None = None) -> None:
        more = np.full((max(0, n - len(self.store)), self.page_tokens), -1000, np.int64)
        self.store = np.concatenate([self.store, more])
        self.reserved_pages = (len(self.store),)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self.store[target] = self.store[source]

    def run(self, batch: Batch) -> np.ndarray:
        batch.check(self)
        self.batches.append(batch)
        table, out = batch.page_tables[0, 0], []
        for id, position in zip(batch.ids, batch.positions[0], strict=True):
            self.store[table[position // 32], position % 32] = id
        if self.fail is not None:
            raise self.fail
        for row in batch.logits_rows:
            position = batch.positions[0, row]
            total = sum(self.store[table[p // 32], p % 32] for p in range(position + 1))
            out.append(np.eye(VOCAB, dtype=np.float32)[total % VOCAB])
        return np.array(out, np.float32).reshape(-1, VOCAB)

    def close(self) -> None: ...


def make(
    chunk: int | None = None, budget: int = 10**6, **options: object
) -> tuple[Recorder, PagePool, ProgramDecoder]:
    program = Recorder()
    pool = PagePool(program, budget)
    return program, pool, ProgramDecoder(program, pool, chunk=chunk, **options)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 65, 200])
@pytest.mark.parametrize("chunk", [None, 1, 7, 32, 1000])
def test_prefill_in_chunks_is_one_prompt(n, chunk):
    program, pool, decoder = make(chunk)
    ids = [(7 * i + 3) % VOCAB for i in range(n)]
    assert decoder.prefill(ids).argmax() == sum(ids) % VOCAB
    assert decoder.length == n and pool.in_use == (-(-n // 32),)
    assert np.concatenate([batch.ids for batch in program.batches]).tolist() == ids
    assert np.concatenate([batch.positions[0] for batch in program.batches]).tolist() == list(range(n))
    assert all((batch.roles == PROMPT).all() for batch in program.batches)
    assert max(len(batch.ids) for batch in program.batches) <= min(chunk or 64, 64)
    assert [len(batch.logits_rows) for batch in program.batches] == [0] * (len(program.batches) - 1) + [1]


def test_decode_appends_with_the_generated_role():
    program, pool, decoder = make()
    decoder.prefill([1, 2])
    for i in range(100):
        logits = decoder.decode(i % 5)
        assert logits.argmax() == (3 + sum(k % 5 for k in range(i + 1))) % VOCAB
        assert (program.batches[-1].roles == GENERATED).all()
    assert decoder.length == 102 and pool.in_use == (4,)


def test_logits_do_not_change_with_later_calls():
    _, _, decoder = make()
    first = decoder.prefill([1, 2])
    kept = first.copy()
    second = decoder.decode(5)
    decoder.decode(6)
    assert np.array_equal(first, kept) and second.argmax() == 8


def test_a_new_prefill_forgets_the_old_sequence():
    _, pool, decoder = make()
    decoder.prefill([9] * 200)
    assert decoder.prefill([1, 2]).argmax() == 3
    assert decoder.length == 2 and pool.in_use == (1,)


def test_truncate_keeps_the_prefix_and_frees_the_rest():
    _, pool, decoder = make()
    decoder.prefill([1] * 40)
    for _ in range(60):
        decoder.decode(2)
    assert pool.in_use == (4,)
    decoder.truncate(40)
    assert decoder.length == 40 and pool.in_use == (2,)
    assert decoder.decode(5).argmax() == 45
    decoder.truncate(32)
    assert pool.in_use == (1,) and decoder.decode(1).argmax() == 33
    for bad in (-1, 34):
        with pytest.raises(ValueError, match="truncate"):
            decoder.truncate(bad)
    decoder.close()
    assert pool.in_use == (0,)


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
    program, _, decoder = make()
    decoder.prefill([1, 2, 3])
    count = len(program.batches)
    with pytest.raises(InvalidRequest) as caught:
        decoder.prefill(ids)
    assert caught.value.param == "prompt" and (found is None or found in str(caught.value))
    assert len(program.batches) == count and decoder.decode(4).argmax() == 10


def test_padding_rows_may_be_read_but_not_exceeded():
    _, _, decoder = make(tokenizer_vocab_size=40, eos=7)
    assert decoder.vocab_size == 40 and decoder.eos_token() == 7
    assert decoder.prefill([45]).argmax() == 45
    with pytest.raises(InvalidRequest):
        decoder.decode(50)


def test_the_context_is_a_limit_before_any_compute():
    program, _, decoder = make()
    with pytest.raises(ContextLengthExceeded) as caught:
        decoder.prefill([1] * (CONTEXT + 1))
    assert (caught.value.prompt_tokens, caught.value.context_length) == (CONTEXT + 1, CONTEXT)
    assert program.batches == []
    decoder.prefill([1] * CONTEXT)
    with pytest.raises(ContextLengthExceeded):
        decoder.decode(1)
    assert decoder.length == CONTEXT


def test_decode_needs_a_prompt():
    _, _, decoder = make()
    with pytest.raises(InvalidRequest, match="prefill"):
        decoder.decode(1)


class Boom(BaseException):
    pass


def test_an_error_in_prefill_leaves_it_empty_and_usable():
    program, pool, decoder = make(chunk=10)
    program.fail = Boom()
    with pytest.raises(Boom):
        decoder.prefill([3] * 50)
    assert decoder.length == 0 and pool.in_use == (0,)
    program.fail = None
    assert decoder.prefill([1, 2]).argmax() == 3


def test_an_error_in_decode_leaves_it_as_it_was():
    program, pool, decoder = make()
    decoder.prefill([1] * 32)
    program.fail = Boom()
    with pytest.raises(Boom):
        decoder.decode(9)
    assert decoder.length == 32 and pool.in_use == (1,)
    program.fail = None
    assert decoder.decode(2).argmax() == 34


def test_running_out_of_pages_in_prefill_and_in_decode():
    _, pool, decoder = make(budget=30)
    with pytest.raises(InsufficientMemory):
        decoder.prefill([1] * 97)
    assert pool.in_use == (0,)
    decoder.prefill([1] * 96)
    with pytest.raises(InsufficientMemory):
        decoder.decode(1)
    assert decoder.length == 96
    assert decoder.prefill([4]).argmax() == 4


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_cancel_is_asked_before_every_chunk(allowed):
    program, pool, decoder = make(chunk=10)
    asked = []
    decoder.cancelled = lambda: asked.append(1) or len(asked) > allowed
    with pytest.raises(Cancelled):
        decoder.prefill([1] * 50)
    assert len(program.batches) == allowed and pool.in_use == (0,) and decoder.length == 0


def test_generate_hands_its_hook_to_the_decoder():
    program, _, decoder = make(chunk=10)
    asked = []
    result = generate(decoder, [1] * 50, GenerationConfig(), lambda: asked.append(1) or len(asked) > 3)
    assert (result.tokens, result.stop_reason) == ([], GenerationStopReason.Cancelled)
    assert len(program.batches) == 2, "asked once before the prompt, then before each chunk"


@pytest.mark.parametrize("tiny", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])
def test_a_real_program_gives_the_logits_of_the_oracle_whatever_came_before(tiny):
    with tiny.compile(ReferenceBackend()) as program:
        decoder = ProgramDecoder(program, PagePool(program, 64 * sum(program.page_bytes)), chunk=9)
        ids, answer = tiny.ids(40), [5, 3, 8]
        whole = tiny.oracle([*ids, *answer])
        for before in ([], tiny.ids(70, seed=1), ids[:10]):  # what ran before must not show
            if before:
                decoder.prefill(before)
            rows = [decoder.prefill(ids), *(decoder.decode(id) for id in answer)]
            np.testing.assert_allclose(rows, whole[len(ids) - 1 :], rtol=2e-5, atol=2e-5)
        decoder.truncate(len(ids))
        again = [decoder.decode(id) for id in answer]
        assert np.array_equal(again, rows[1:])
