"""What goes into a pass and comes out of it is used again: never what somebody still holds."""

from __future__ import annotations

import numpy as np
import pytest

from rase._kernels.batch import BatchView, Output, view_of
from rase.backends._rows import RowMemory
from rase.backends.base import GENERATED, Batch


def test_memory_is_used_again_when_nobody_holds_any_of_it():
    memory = RowMemory(600, 2)
    address = memory.take(3).rows.ctypes.data
    assert memory.take(2).rows.ctypes.data == address, "fewer rows fit"
    for hold in (
        lambda output: output.rows,
        lambda output: output.peaks,
        lambda output: output.rows[1, 5:],
        lambda output: output.peaks[:1],
        lambda output: memoryview(output.rows[0]),
        lambda output: output.each(),
        lambda output: output.each()[1].logits,
    ):
        first = memory.take(2)
        held = hold(first)
        first = first.rows.ctypes.data
        assert memory.take(2).rows.ctypes.data != first
        del held
        assert first in {memory.take(2).rows.ctypes.data, memory.take(2).rows.ctypes.data}


def test_rows_are_as_wide_as_was_asked_for_and_whole_vectors_apart():
    output = Output(4, 600, 2)
    assert output.rows.shape == (4, 600) and output.peaks.shape == (4, 32)
    assert output.rows.strides == (608 * 4, 4)
    assert output.fit(0) and output.rows.shape == (0, 600) and output.peaks.shape == (0, 32)
    assert not output.fit(5)
    assert output.fit(3)
    output.rows[:] = np.arange(1800, dtype=np.float32).reshape(3, 600)
    for index, row in enumerate(output.each()):
        np.testing.assert_array_equal(row.logits, output.rows[index])
    assert Output(2, 10, 0).peaks.shape == (2, 0)


def test_a_view_shows_numbers_as_they_change_and_arrays_as_they_were():
    batch = Batch.of([5, 6, 7], 30, [0, 1], GENERATED)
    view = view_of(batch)
    assert (view.tokens, view.generated, view.outputs, view.last_position) == (3, 3, 1, 32)
    assert view_of(batch, view) is view
    view.put(2, 9, 40)
    assert batch.ids.tolist() == [5, 6, 9] and batch.positions.tolist() == [[30, 31, 40]]
    assert view.last_position == 40
    batch.roles[1:] = 1
    assert view.generated == 1
    for row in (-1, 3):
        with pytest.raises(IndexError):
            view.put(row, 0, 0)
    batch.ids = batch.ids.copy()
    assert not view.shows(batch) and view_of(batch, view) is not view
    batch.ids = batch.ids.astype(np.int64)
    with pytest.raises(ValueError, match="dtype"):
        BatchView(batch)
