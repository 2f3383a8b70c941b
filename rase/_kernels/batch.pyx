"""What goes into a pass and what comes out of it, as compiled code sees them: made once and used again.

A step of decoding follows the last one with other ids and positions in the same arrays, and is checked by the rules of
backends/check.py for steps in which every sequence adds one token. They only say yes or no; whoever gets a no runs the
full check, which says why.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from rase._kernels.sampler cimport Row

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)


cdef class BatchView:
    """The arrays of a batch, which stay what they are while their numbers change."""

    def __init__(self, batch):
        self._ids, self._positions, self._sequences = batch.ids, batch.positions, batch.sequences
        self._tables, self._roles, self._logits_rows = batch.page_tables, batch.roles, batch.logits_rows
        self.ids, self.positions, self.sequences = self._ids, self._positions, self._sequences
        self.tables, self.roles, self.logits_rows = self._tables, self._roles, self._logits_rows

    def shows(self, batch):
        return (batch.ids is self._ids and batch.positions is self._positions and batch.sequences is self._sequences
                and batch.page_tables is self._tables and batch.roles is self._roles
                and batch.logits_rows is self._logits_rows)

    @property
    def tokens(self):
        return self.ids.shape[0]

    @property
    def generated(self):
        cdef int64_t i, count = 0
        for i in range(self.roles.shape[0]):
            count += self.roles[i] == 0
        return count

    @property
    def outputs(self):
        return self.logits_rows.shape[0]

    @property
    def last_position(self):
        cdef int64_t i, last = -1
        for i in range(self.ids.shape[0]):
            last = max(last, self.positions[0, i])
        return last

    def put(self, Py_ssize_t row, int32_t id, int32_t position):
        if not 0 <= row < self.ids.shape[0]:
            raise IndexError(row)
        (<int32_t *>&self.ids[row])[0] = id
        (<int32_t *>&self.positions[0, row])[0] = position


def view_of(batch, BatchView last=None):
    return last if last is not None and last.shows(batch) else BatchView(batch)


cdef class Output:
    """``rows`` (m, columns) in memory for ``capacity`` of them, and 16 peaks for each of ``blocks`` of a row."""

    def __init__(self, Py_ssize_t capacity, Py_ssize_t columns, Py_ssize_t blocks):
        from numpy import empty, float32

        self._capacity, self._columns, self._padded, self._blocks = capacity, columns, (columns + 15) // 16 * 16, blocks
        self._rows_memory = empty(capacity * self._padded, float32)
        self._peaks_memory = empty(capacity * 16 * blocks, float32)
        self._show(capacity)

    cdef _show(self, Py_ssize_t rows):
        padded = self._rows_memory[: rows * self._padded].reshape(rows, self._padded)
        self.logits, self.rows = padded, padded[:, : self._columns]
        self.peaks = self._peaks_memory[: rows * 16 * self._blocks].reshape(rows, 16 * self._blocks)
        self.tops = self.peaks
        self._held = self._references()

    cdef Py_ssize_t _references(self):
        """Of all arrays. Every view of one counts as a reference to its memory."""
        return (Py_REFCNT(self._rows_memory) + Py_REFCNT(self._peaks_memory) + Py_REFCNT(self.rows)
                + Py_REFCNT(self.peaks))

    def fit(self, Py_ssize_t rows):
        if rows > self._capacity or self._references() != self._held:
            return False
        if rows != self.logits.shape[0]:
            self._show(rows)
        return True

    def each(self):
        cdef tuple owners = (self.rows, self.peaks)
        cdef Py_ssize_t i, blocks = self.tops.shape[1]
        return [Row.of(owners, i, &self.logits[i, 0], self._columns, &self.tops[i, 0] if blocks else NULL, blocks)
                for i in range(self.logits.shape[0])]

    @property
    def nbytes(self):
        return 4 * self._capacity * self._padded


cdef class DecodeRules:
    """The rules of a batch of plain decoding, for a program of which these are the numbers."""

    cdef int64_t vocab_size, context_length, page_tokens, max_tokens
    cdef tuple windows

    def __init__(self, int64_t vocab_size, int64_t context_length, int64_t page_tokens, int64_t max_tokens, windows):
        self.vocab_size, self.context_length = vocab_size, context_length
        self.page_tokens, self.max_tokens, self.windows = page_tokens, max_tokens, tuple(windows)

    def accept(self, BatchView batch not None, tuple reserved_pages not None):
        cdef int64_t n = batch.ids.shape[0], tables = batch.tables.shape[1], i, group
        if n < 1 or n > self.max_tokens or n > tables or batch.positions.shape[0] != 1 or batch.positions.shape[1] != n:
            return False
        if batch.sequences.shape[0] != n or batch.roles.shape[0] != n:
            return False
        if batch.tables.shape[0] != len(self.windows) or len(reserved_pages) != len(self.windows):
            return False
        for i in range(n):
            if not (0 <= batch.ids[i] < self.vocab_size and 0 <= batch.positions[0, i] < self.context_length):
                return False
            if batch.sequences[i] < (0 if i == 0 else batch.sequences[i - 1] + 1) or batch.sequences[i] >= tables:
                return False
            if batch.roles[i] > (1 if n == 1 else 0):
                return False
            if batch.positions[0, i] // self.page_tokens >= batch.tables.shape[2]:
                return False
        for i in range(batch.logits_rows.shape[0]):
            if not 0 <= batch.logits_rows[i] < n:
                return False
        for group in range(batch.tables.shape[0]):
            if not self._have_pages(batch, group, reserved_pages[group], self.windows[group]):
                return False
        return True

    cdef bint _have_pages(self, BatchView batch, int64_t group, int64_t reserved, int64_t window) except -1:
        """Whether all pages exist, those that a token sees are there, and those that are written are in one place."""
        cdef const int32_t[:, ::1] tables = batch.tables[group]
        cdef int64_t row, i, first, last, position
        cdef int *places = <int *>calloc(reserved + 1, sizeof(int))  # of each page
        cdef bint good = places != NULL
        if not good:
            raise MemoryError
        for row in range(tables.shape[0]):
            for i in range(tables.shape[1]):
                if tables[row, i] >= reserved:
                    good = False
                elif tables[row, i] >= 0:
                    places[tables[row, i]] += 1
        for i in range(batch.sequences.shape[0]):
            if not good:
                break
            row, position = batch.sequences[i], batch.positions[0, i]
            first, last = 0, position // self.page_tokens
            if 0 < window <= position:
                first = (position - window + 1) // self.page_tokens
            good = places[tables[row, last]] == 1 if tables[row, last] >= 0 else False
            while good and first < last:
                good = tables[row, first] >= 0
                first += 1
        free(places)
        return good
