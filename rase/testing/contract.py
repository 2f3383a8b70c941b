"""What every program promises: chunks, company, page order, threads and leftovers in memory never change a
result (rules R1 to R5 and R8); what cannot run is refused; closing and failing leave nothing behind.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from rase.backends.base import GENERATED, PROMPT, Batch
from rase.errors import BackendError, ContextLengthExceeded, InvalidRequest
from rase.testing.interrupts import interrupted
from rase.testing.programs import assert_same_bits, decode_each, run_chunks
from rase.testing.promises import Promises
from rase.testing.random_model import RandomModel
from rase.testing.tiny import TINY_LLAMA, TINY_QWEN3, WIDE_LLAMA, WIDE_QWEN3, ZOO, Mixed, Tiny

MODELS = {
    "llama F32": TINY_LLAMA,
    "qwen3 F16": TINY_QWEN3.but(matrices="F16"),
    "llama window Q8_0": TINY_LLAMA.but(window=40, matrices="Q8_0"),
    "qwen3 Q4_K": WIDE_QWEN3.but(matrices="Q4_K"),
    "llama Q6_K, tied": WIDE_LLAMA.but(matrices="Q6_K", tied=True),
    "gemma2 Q8_0": ZOO["gemma2"].but(dim=64, matrices="Q8_0"),  # caps, gelu, a window beside full attention
    "phi3 F16": ZOO["phi3-long"].but(matrices="F16", context=1024),  # fused matrices, long rope
    "qwen3moe Q8_0": ZOO["qwen3moe"].but(matrices="Q8_0"),
    "qwen35 Q8_0": ZOO["qwen35"].but(
        matrices="Q8_0", extra={**ZOO["qwen35"].extra, "ssm.inner_size": 192}
    ),  # states beside attention
}
LENGTH = 300  # ten pages, and more than one chunk of 256 positions


class ProgramContract(Promises):
    """Program by program; ``tiny`` may be another fixture, with fewer models."""

    @pytest.fixture(params=MODELS)
    def tiny(self, request: pytest.FixtureRequest) -> Tiny:
        return MODELS[request.param]

    # The same bits, whatever happens around

    @pytest.mark.parametrize("chunks", [[1] * 20 + [280], [31, 1, 32, 33, 203], [256, 44], [255, 2, 43]])
    def test_chunks_of_a_prompt_do_not_matter(self, tiny: RandomModel, chunks: list[int]) -> None:
        ids = tiny.ids(LENGTH)
        for numerics in self.numerics:
            with self.compile(tiny, numerics=numerics) as program:
                expected = run_chunks(program, ids)
                self.same(run_chunks(program, ids, chunks), expected, f"{numerics}, chunks {chunks[:5]}")

    def test_decode_equals_prefill_where_both_roles_have_one_arithmetic(self, tiny: RandomModel) -> None:
        """What a program says of its roles is true; in the portable class they are alike."""
        ids = tiny.ids(70)
        for numerics in self.numerics:
            with self.compile(tiny, numerics=numerics) as program:
                assert program.one_arithmetic or numerics != "portable"
                alone = decode_each(program, ids)
                rows = run_chunks(program, ids, [9, 16, 45], role=GENERATED)
                self.same(rows, alone, f"{numerics}: rows of generated tokens")
                if program.one_arithmetic:
                    self.same(alone, run_chunks(program, ids), f"{numerics}: decode and prefill")

    def test_company_in_the_batch_does_not_matter(self, tiny: RandomModel) -> None:
        """Two prompts and two decodes in one batch, each equal to the same tokens alone."""
        a, b, c, d = (tiny.ids(n, seed) for n, seed in ((40, 1), (7, 2), (33, 3), (64, 4)))
        for numerics in self.numerics:
            with self.compile(tiny, numerics=numerics) as program:
                alone = [run_chunks(program, a), run_chunks(program, b)]
                for ids in (c, d):
                    run_chunks(program, ids[:-1])
                    alone.append(run_chunks(program, ids[-1:], role=GENERATED, start=len(ids) - 1))
                tables = {"a": [0, 1], "b": [2, -1], "c": [3, 4], "d": [5, 6]}
                run_chunks(program, c[:-1], pages=tables["c"])
                run_chunks(program, d[:-1], pages=tables["d"])
                together = program.run(
                    Batch(
                        ids=np.array([c[-1], d[-1], *a, *b], np.int32),
                        positions=np.array([[32, 63, *range(40), *range(7)]], np.int32),
                        sequences=np.array([2, 3] + [0] * 40 + [1] * 7, np.int32),
                        page_tables=np.array([list(tables.values())] * len(program.page_bytes), np.int32),
                        roles=np.array([GENERATED] * 2 + [PROMPT] * 47, np.uint8),
                        logits_rows=np.arange(49, dtype=np.int32),
                    )
                )
                self.same(together[2:42], alone[0], f"{numerics}: prompt a")
                self.same(together[42:], alone[1], f"{numerics}: prompt b")
                self.same(together[:1], alone[2], f"{numerics}: decode c")
                self.same(together[1:2], alone[3], f"{numerics}: decode d")

    def test_pages_may_lie_in_any_order(self, tiny: RandomModel) -> None:
        ids = tiny.ids(100)
        with self.compile(tiny) as program:
            expected = run_chunks(program, ids)
            self.same(run_chunks(program, ids, [50, 50], pages=[63, 5, 17, 2]), expected, "scattered pages")

    def test_sequences_share_pages_of_a_common_prefix(self, tiny: RandomModel) -> None:
        prefix, tail, other, noise = (tiny.ids(n, seed) for n, seed in ((64, 1), (20, 2), (20, 3), (96, 4)))
        with self.compile(tiny) as program:
            first = run_chunks(program, prefix + tail, pages=[4, 5, 6])
            second = run_chunks(program, prefix + other, pages=[4, 5, 6])
            run_chunks(program, prefix + tail, pages=[7, 3, 9])
            run_chunks(program, noise, pages=[0, 1, 2])
            found = run_chunks(program, other, pages=[7, 3, 8], start=64)
            self.same(found, second[64:], "after a shared prefix")
            if program.states is None:  # a state goes on where it stands, and nowhere else
                found = run_chunks(program, tail[-1:], pages=[7, 3, 9], start=83)
                self.same(found, first[83:], "the first sequence goes on")

    def test_what_pages_held_before_does_not_matter(self, tiny: RandomModel) -> None:
        ids = tiny.ids(45)
        with self.compile(tiny) as program:
            expected = run_chunks(program, ids)
            for seed in (5, 6):
                run_chunks(program, tiny.ids(128, seed), pages=[3, 2, 1, 0])
            self.same(run_chunks(program, ids), expected, "used pages")
            if program.states is None:
                again = decode_each(program, ids[40:], start=40)
                self.same(again, decode_each(program, ids[40:], start=40), "again")

    def test_threads_do_not_matter(self, tiny: RandomModel) -> None:
        ids = tiny.ids(LENGTH)
        for numerics in self.numerics:
            rows = []
            for threads in self.threads:
                with self.compile(tiny, numerics=numerics, threads=threads) as program:
                    prompt = run_chunks(program, ids)
                    rows.append(np.concatenate([prompt, decode_each(program, ids[:5], start=LENGTH)]))
            for threads, found in zip(self.threads[1:], rows[1:], strict=True):
                self.same(found, rows[0], f"{numerics}, {threads} threads")

    def test_logits_rows_are_any_rows_in_any_order(self, tiny: RandomModel) -> None:
        ids = tiny.ids(50)
        with self.compile(tiny) as program:
            expected = run_chunks(program, ids)
            for rows in ([49], [], [3, 3, 0], [49, 7]):
                found = program.run(Batch.of(ids, 0, [0, 1], PROMPT, rows, len(program.page_bytes)))
                assert found.dtype == np.float32 and found.shape == (len(rows), tiny.vocab)
                self.same(found, expected[rows], f"rows {rows}")

    def test_peaks_are_those_of_the_rows(self) -> None:
        """What a sampler looks at first, where a program gives it: two whole blocks of 256 logits."""
        tiny = TINY_LLAMA.but(vocab=600)
        with self.compile(tiny) as program:
            rows = program.run(Batch.of(tiny.ids(20), 0, [0], PROMPT, logits_rows=range(20)))
            if (found := program.peaks_of(rows)) is not None:
                expected = rows[:, :512].reshape(20, 2, 16, 16).max(2).reshape(20, 32)
                assert_same_bits(np.asarray(found), expected, "peaks")
            assert program.peaks_of(rows.copy()) is None, "of other rows nothing is known"

    def test_new_pages_keep_what_is_stored(self, tiny: RandomModel) -> None:
        ids = tiny.ids(90)
        with self.compile(tiny) as program:
            expected = run_chunks(program, ids)
            run_chunks(program, ids[:64])
            program.reserve_pages(200)
            program.reserve_pages(3)  # never shrinks
            assert program.reserved_pages == (200,) * len(program.page_bytes)
            self.same(
                run_chunks(program, ids[64:], pages=[0, 1, 199], start=64), expected[64:], "after growth"
            )

    def test_each_cache_group_has_its_own_pages(self) -> None:
        """A full and a window layer: other page ids in each, and pages that the window has left are gone."""
        tiny = TINY_LLAMA.but(window=40)
        ids = tiny.ids(150)
        with self.compile(Mixed(tiny)) as program:
            assert len(program.page_bytes) == 2
            expected = run_chunks(program, ids)
            tables = np.array([[[9, 3, 7, 1, 5]], [[2, 6, 0, 4, 8]]], np.int32)
            rows = []
            for start, end in ((0, 60), (60, 149), (149, 150)):
                step = Batch.of(ids[start:end], start, range(5), PROMPT, range(end - start), groups=2)
                step.page_tables = tables
                if start:
                    step.page_tables[0, 0, : (start - 39) // 32] = -1
                rows.append(program.run(step))
            self.same(np.concatenate(rows), expected, "two groups")

    def test_a_copied_page_holds_the_same(self) -> None:
        tiny = TINY_LLAMA.but(window=40)
        ids, tail = tiny.ids(50), tiny.ids(20, 3)
        with self.compile(Mixed(tiny)) as program:
            expected = run_chunks(program, ids + tail)
            run_chunks(program, ids, pages=[4, 5])
            for group in (0, 1):
                program.copy_page(group, 5, 6)
            run_chunks(program, tiny.ids(14, 9), pages=[4, 5], start=50)
            found = run_chunks(program, tail, pages=[4, 6, 7], start=50)
            self.same(found, expected[50:], "after a copy")

    # What is refused, and that nothing happens then

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"ids": [5, -1]}, InvalidRequest),
            ({"ids": [5, 10**6]}, InvalidRequest),
            ({"positions": [[1023, 1024]]}, ContextLengthExceeded),
            ({"page_tables": [[[64]]]}, BackendError),
            ({"page_tables": [[[-1]]]}, BackendError),
            ({"sequences": [0, 1]}, BackendError),
            ({"logits_rows": [2]}, BackendError),
        ],
    )
    def test_a_batch_that_cannot_run_is_refused_and_changes_nothing(
        self, change: dict[str, Any], error: type[Exception]
    ) -> None:
        ids = TINY_LLAMA.ids(20)
        with self.compile(TINY_LLAMA) as program:
            expected = run_chunks(program, ids)
            batch = Batch.of([1, 2], 0, [0], PROMPT)
            for name, value in change.items():
                setattr(batch, name, np.asarray(value, getattr(batch, name).dtype))
            if name == "positions":
                batch.page_tables = np.arange(33, dtype=np.int32).reshape(1, 1, -1)
            with pytest.raises(error):
                program.run(batch)
            self.same(run_chunks(program, ids[19:], start=19, role=PROMPT), expected[19:], "after a refusal")

    def test_a_batch_larger_than_the_program_is_refused(self) -> None:
        with self.compile(TINY_LLAMA, max_batch_tokens=8) as program:
            assert program.max_batch_tokens == 8
            run_chunks(program, TINY_LLAMA.ids(8))
            with pytest.raises(BackendError, match="1 to 8"):
                run_chunks(program, TINY_LLAMA.ids(9))

    # Pages that are copied, saved, restored

    def test_a_saved_page_can_be_restored_in_another_program(self, tiny: RandomModel) -> None:
        """Also where states stand: what a page holds is good for the position after it, and no other."""
        ids, tail = tiny.ids(64), tiny.ids(10, 3)
        with self.compile(tiny) as program:
            expected = run_chunks(program, ids + tail, [64, 10], pages=[0, 1, 2])
            run_chunks(program, ids, pages=[4, 9])
            groups = range(len(program.page_bytes))
            saved = [[program.save_page(group, page) for group in groups] for page in (4, 9)]
            sizes = [len(part) for part in saved[0]]
            assert sizes == list(program.page_bytes)
        with self.compile(tiny) as program:
            for place, parts in enumerate(saved):
                for group, data in enumerate(parts):
                    program.restore_page(group, 30 + place, data, 32 * (place + 1))
            found = run_chunks(program, tail, pages=[30, 31, 7], start=64)
            self.same(found, expected[64:], "behind restored pages")
            with pytest.raises(ValueError):
                program.restore_page(0, 30, saved[0][0][:-1], 32)

    # Whatever ends early

    def test_an_interrupt_leaves_a_program_that_computes_the_same(self) -> None:
        ids = TINY_LLAMA.ids(40)
        with self.compile(TINY_LLAMA) as program:
            expected = run_chunks(program, ids)
            interrupted(lambda: run_chunks(program, ids), [0.0002 * 1.3 ** (turn % 16) for turn in range(40)])
            self.same(run_chunks(program, ids), expected, "after interrupts")

    def test_closing_waits_for_a_batch_that_runs(self) -> None:
        ids, errors = TINY_LLAMA.ids(200), []
        program = self.compile(TINY_LLAMA)
        expected = run_chunks(program, ids)
        started = threading.Event()

        def work() -> None:
            try:
                while True:
                    found = run_chunks(program, ids)
                    started.set()
                    self.same(found, expected, "while another thread closes")
            except Exception as error:
                errors.append(error)
                started.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert started.wait(60)
        program.close()
        thread.join(60)
        assert not thread.is_alive(), "a batch outlived its program"
        assert isinstance(errors[0], BackendError), repr(errors[0])  # closed, or closing at this moment

    def test_a_closed_program_says_so(self) -> None:
        program = self.compile(TINY_LLAMA)
        program.close()
        program.close()
        with pytest.raises(BackendError, match="closed"):
            run_chunks(program, [1])

    def memory(self) -> int:
        """Bytes that this process holds where the backend keeps its weights."""
        import psutil

        return int(psutil.Process().memory_info().rss)

    def test_memory_is_given_back(self) -> None:
        """Ten programs one after the other take no more than the first ones did."""
        tiny = TINY_LLAMA.but(vocab=12_000, dim=256, hidden=256, head_dim=64)
        held, size = [], 0
        for _ in range(8):
            with self.compile(tiny) as program:
                size = sum(info.nbytes for info in tiny.source.tensors.values())
                run_chunks(program, tiny.ids(20))
            del program
            gc.collect()
            held.append(self.memory())
        grown = min(held[4:]) - min(held[:4])
        assert grown < size / 2, f"grew by {grown:,} bytes; one model has {size:,}"
