"""The test of the contract: a program with one fault of each kind does not pass."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rase.backends.base import CompileOptions
from rase.backends.reference import ReferenceProgram
from rase.testing.contract import ProgramContract
from rase.testing.tiny import TINY_LLAMA


class IgnoresPageTables(ReferenceProgram):
    def run(self, batch):
        batch.check(self)
        batch.page_tables = np.arange(batch.page_tables.size, dtype=np.int32).reshape(batch.page_tables.shape)
        return super().run(batch)


class SeesOnlyItsChunk(ReferenceProgram):
    def run(self, batch):
        self.start = int(batch.positions.min())
        return super().run(batch)

    def cached(self, op, table, first, last):
        return super().cached(op, table, max(first, self.start), last)


class SeesOnePositionTooMany(ReferenceProgram):
    def cached(self, op, table, first, last):
        return super().cached(op, table, first, last + (last % self.page_tokens != self.page_tokens - 1))


class WritesIntoTheFirstSequence(ReferenceProgram):
    def store(self, op, batch, k, v):
        super().store(op, batch, k, v)
        own, batch.sequences = batch.sequences, np.zeros_like(batch.sequences)
        super().store(op, batch, k, v)
        batch.sequences = own


class RoundsByRole(ReferenceProgram):
    def store(self, op, batch, k, v):
        self.kv_dtype = "float64" if batch.roles[0] else "float16"
        super().store(op, batch, k, v)


class ForgetsWhenItGrows(ReferenceProgram):
    def reserve_pages(self, n, group=None):
        if n > self.reserved_pages[0]:
            self._stores = [store * 0 for store in self._stores]
        super().reserve_pages(n, group)


class RunsWhenClosed(ReferenceProgram):
    def close(self):
        pass


class MixesLogitsRows(ReferenceProgram):
    def run(self, batch):
        batch.logits_rows = np.sort(batch.logits_rows)
        return super().run(batch)


class SkipsTheCheck(ReferenceProgram):
    def run(self, batch):
        batch.check = lambda program: None
        return super().run(batch)


@pytest.mark.parametrize(
    ("program", "test", "arguments"),
    [
        (SeesOnlyItsChunk, "test_chunks_of_a_prompt_do_not_matter", {"chunks": [31, 269]}),
        (RoundsByRole, "test_decode_equals_prefill_where_both_roles_have_one_arithmetic", {}),
        (WritesIntoTheFirstSequence, "test_company_in_the_batch_does_not_matter", {}),
        (IgnoresPageTables, "test_sequences_share_pages_of_a_common_prefix", {}),
        (SeesOnePositionTooMany, "test_what_pages_held_before_does_not_matter", {}),
        (MixesLogitsRows, "test_logits_rows_are_any_rows_in_any_order", {}),
        (ForgetsWhenItGrows, "test_new_pages_keep_what_is_stored", {}),
    ],
)
def test_a_fault_is_found(program, test, arguments):
    contract = ProgramContract()
    contract.exact, contract.numerics = False, ("portable",)
    contract.compile = compiler(program)
    with pytest.raises(AssertionError, match="NMSE"):
        getattr(contract, test)(tiny=TINY_LLAMA, **arguments)


@pytest.mark.parametrize(
    ("program", "test", "arguments"),
    [
        (RunsWhenClosed, "test_a_closed_program_says_so", {}),
        (SkipsTheCheck, "test_a_batch_larger_than_the_program_is_refused", {}),
    ],
)
def test_a_missing_refusal_is_found(program, test, arguments):
    contract = ProgramContract()
    contract.compile = compiler(program)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        getattr(contract, test)(**arguments)


def compiler(program):
    def compile(tiny, **options):
        loaded = tiny.source.floats()
        made = program(tiny.graph(), loaded, "float64", CompileOptions(**options).max_batch_tokens)
        made.reserve_pages(64)
        return made

    return compile


OUTSIDE = """
from rase.backends.cpu import CpuBackend
from rase.testing import BackendContract

class TestMine(BackendContract):
    refused = ("attention with sinks",)

    def backend(self):
        return CpuBackend()
"""


def test_another_package_runs_the_contract_without_these_tests(tmp_path):
    """In a folder of its own, where nothing of this checkout but the package can be imported."""
    path = tmp_path / "test_mine.py"
    path.write_text(OUTSIDE)
    chosen = "every_op or (planted_fault and Scale) or closed or (reference and granite) or (copied)"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
