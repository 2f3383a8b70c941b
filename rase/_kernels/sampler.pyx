"""Sampling one row of logits: penalties, filters and the draw, without the GIL.

``rase.engine.sampler`` checks configurations and documents the rules; this module composes the steps of
sampler.h.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from rase._kernels.kernels cimport Variant

cdef extern from "fpenv.h" nogil:
    uint64_t rase_fp_enter() noexcept
    void rase_fp_leave(uint64_t before) noexcept

cdef extern from "mathfn.h" nogil:
    double rase_log(double x) noexcept

cdef extern from "sampler.h" nogil:
    const int64_t SAMPLER_BLOCK
    const int SAMPLER_OK
    int scan_row(const float *row, int64_t n, uint32_t *block_max) noexcept
    int scan_peaks(const float *row, int64_t n, const float *peaks, uint32_t *block_max) noexcept
    int64_t argmax_row(const float *row, int64_t n, const uint32_t *block_max) noexcept
    int64_t select_best(const float *row, int64_t n, const uint32_t *block_max, int64_t k,
                        uint64_t *out) noexcept
    void sort_all(const float *row, int64_t n, uint64_t *out, uint64_t *spare) noexcept
    void penalise(float *row, const int32_t *ids, int64_t count, const int32_t *uses, double repetition,
                  double presence, double frequency) noexcept
    void add_bias(float *row, const int32_t *ids, const double *values, int64_t count) noexcept
    double weight_of(float logit, double top, double scale, double floor) noexcept
    double row_weight(const float *row, int64_t n, double top, double scale, double floor,
                      double *block_sum) noexcept
    int64_t walk_row(const float *row, int64_t n, double top, double scale, double floor,
                     const double *block_sum, double target) noexcept
    void philox4x32(const uint32_t *counter, const uint32_t *key, uint32_t *out) noexcept
    double draw(uint64_t seed, uint32_t choice, uint64_t position) noexcept


cdef class History:
    """The ids of one sequence as the penalties see them; ids outside 0..vocab_size-1 count nowhere."""

    cdef int64_t vocab_size
    cdef int64_t distinct    # ids[0:distinct]: every id that occurs, in order of first occurrence
    cdef int32_t *ids
    cdef int32_t *uses       # (vocab_size,) times generated
    cdef uint8_t *seen       # (vocab_size,) 1 = listed in ids

    def __cinit__(self, const int32_t[::1] prompt, int64_t vocab_size):
        if vocab_size < 1:
            raise ValueError("vocab_size must be at least 1")
        self.vocab_size = vocab_size
        self.ids = <int32_t *>malloc(vocab_size * sizeof(int32_t))
        self.uses = <int32_t *>calloc(vocab_size, sizeof(int32_t))
        self.seen = <uint8_t *>calloc(vocab_size, 1)
        if self.ids == NULL or self.uses == NULL or self.seen == NULL:
            raise MemoryError
        cdef Py_ssize_t i
        for i in range(prompt.shape[0]):
            self._list(prompt[i])

    def __dealloc__(self):
        free(self.ids)
        free(self.uses)
        free(self.seen)

    cdef bint _list(self, int64_t id) noexcept:
        if id < 0 or id >= self.vocab_size:
            return False
        if not self.seen[id]:
            self.seen[id] = 1
            self.ids[self.distinct] = <int32_t>id
            self.distinct += 1
        return True

    def push(self, int64_t id):
        """Count one generated id."""
        if self._list(id):
            self.uses[id] += 1


cdef class Row:
    """Logits to choose a token from, (n,) of an array that stays what it is, and their peaks or none."""

    def __init__(self, logits, peaks=None):
        cdef const float[::1] row = logits
        cdef const float[::1] found = peaks
        self._owners, self._index = (logits, peaks), -1
        self.at, self.size = &row[0], row.shape[0]
        if peaks is not None:
            self.peaks, self.peaks_size = &found[0] if found.shape[0] else NULL, found.shape[0]

    @property
    def logits(self):
        return self._owners[0] if self._index < 0 else self._owners[0][self._index]

    @staticmethod
    def all_of(logits, peaks=None):
        cdef const float[:, :] rows = logits
        cdef const float[:, ::1] found = peaks
        if rows.shape[1] and rows.strides[1] != sizeof(float) or peaks is not None and found.shape[0] != rows.shape[0]:
            raise ValueError("rows are contiguous, and all of them have peaks or none")
        cdef int64_t blocks = 0 if peaks is None else found.shape[1]
        cdef tuple owners = (logits, peaks)
        cdef Py_ssize_t i
        return [Row.of(owners, i, &rows[i, 0], rows.shape[1], &found[i, 0] if blocks else NULL, blocks)
                for i in range(rows.shape[0])]

    @staticmethod
    cdef Row of(tuple owners, Py_ssize_t index, const float *at, int64_t size, const float *peaks, int64_t peaks_size):
        """Row ``index`` of (logits, peaks), where it lies."""
        cdef Row row = Row.__new__(Row)
        row._owners, row._index = owners, index
        row.at, row.size, row.peaks, row.peaks_size = at, size, peaks, peaks_size
        return row


cdef class RowSampler:
    """Parameters and scratch of one answer. Not thread-safe; holds no state that changes what is chosen."""

    cdef int64_t n           # ids that may be chosen
    cdef int64_t top_k       # 1..n; n = off
    cdef double temperature, top_p, min_p, repetition, presence, frequency
    cdef uint64_t seed
    cdef uint32_t choice
    cdef bint greedy
    cdef int64_t biased
    cdef int32_t *bias_ids
    cdef double *bias_values
    cdef float *work         # (n,) logits after penalties
    cdef uint32_t *block_max
    cdef double *block_sum
    cdef uint64_t *ranks     # (capacity,) selected ids, best first
    cdef uint64_t *spare
    cdef double *weights     # (capacity,)
    cdef int64_t capacity

    def __cinit__(self, int64_t n, int64_t top_k, double temperature, double top_p, double min_p,
                  double repetition, double presence, double frequency, uint64_t seed, uint32_t choice,
                  bint greedy, const int32_t[::1] bias_ids, const double[::1] bias_values):
        if n < 1 or n > 0x7FFFFFFF:
            raise ValueError("the number of ids must be 1 to 2**31 - 1")
        if bias_ids.shape[0] != bias_values.shape[0]:
            raise ValueError("one bias for each id")
        cdef Py_ssize_t i
        for i in range(bias_ids.shape[0]):
            if bias_ids[i] < 0 or bias_ids[i] >= n:
                raise ValueError("a biased id outside the vocabulary")
        self.n, self.top_k = n, (top_k if 0 < top_k < n else n)
        self.temperature, self.top_p, self.min_p = temperature, top_p, min_p
        self.repetition, self.presence, self.frequency = repetition, presence, frequency
        self.seed, self.choice, self.greedy = seed, choice, greedy
        cdef int64_t blocks = (n + SAMPLER_BLOCK - 1) // SAMPLER_BLOCK
        self.block_max = <uint32_t *>malloc(blocks * sizeof(uint32_t))
        self.block_sum = <double *>malloc(blocks * sizeof(double))
        self.biased = bias_ids.shape[0]
        self.bias_ids = <int32_t *>malloc((self.biased + 1) * sizeof(int32_t))
        self.bias_values = <double *>malloc((self.biased + 1) * sizeof(double))
        self.work = <float *>malloc(n * sizeof(float))
        if (self.block_max == NULL or self.block_sum == NULL or self.bias_ids == NULL
                or self.bias_values == NULL or self.work == NULL):
            raise MemoryError
        for i in range(self.biased):
            self.bias_ids[i], self.bias_values[i] = bias_ids[i], bias_values[i]
        self._hold(min(self.top_k, 256) if self.top_k < n or self.top_p < 1.0 else 32)

    def __dealloc__(self):
        free(self.block_max)
        free(self.block_sum)
        free(self.bias_ids)
        free(self.bias_values)
        free(self.work)
        free(self.ranks)
        free(self.spare)
        free(self.weights)

    cdef int _hold(self, int64_t count) except -1 nogil:
        """Make room for `count` selected ids."""
        if count <= self.capacity:
            return 0
        free(self.ranks)
        free(self.spare)
        free(self.weights)
        self.capacity = 0
        self.ranks = <uint64_t *>malloc(count * sizeof(uint64_t))
        self.spare = <uint64_t *>malloc(count * sizeof(uint64_t))
        self.weights = <double *>malloc(count * sizeof(double))
        if self.ranks == NULL or self.spare == NULL or self.weights == NULL:
            with gil:
                raise MemoryError
        self.capacity = count
        return 0

    cdef int _check(self, Row row) except -1:
        """The sizes of a row and its peaks."""
        if row.size < self.n:
            raise ValueError(f"expected at least {self.n} logits, found {row.size}")
        if row.peaks != NULL and row.peaks_size < self.n // SAMPLER_BLOCK * 16:
            raise ValueError(f"{row.peaks_size} peaks for {self.n} logits")
        return 0

    cdef int _scan(self, const float *row, const float *peaks) noexcept nogil:
        if peaks == NULL:
            return scan_row(row, self.n, self.block_max)
        return scan_peaks(row, self.n, peaks, self.block_max)

    def pick(self, Row row not None, uint64_t position, History history=None):
        """The id chosen for `position`, or -1 for NaN, -2 for infinity in the row.

        Its peaks are what the `peaks` kernel of any variant gives for the row.
        """
        self._check(row)
        if history is not None and history.vocab_size > self.n:
            raise ValueError("the history counts ids that this sampler does not choose from")
        cdef const int32_t *ids = NULL
        cdef const int32_t *uses = NULL
        cdef int64_t distinct = 0
        if history is not None:
            ids, uses, distinct = history.ids, history.uses, history.distinct
        cdef int64_t id
        cdef uint64_t mode
        with nogil:
            mode = rase_fp_enter()
            try:
                id = self._pick(row.at, row.peaks, position, ids, uses, distinct)
            finally:
                rase_fp_leave(mode)
        return id

    cdef int64_t _pick(self, const float *row, const float *peaks, uint64_t position, const int32_t *ids,
                       const int32_t *uses, int64_t distinct) except -10 nogil:
        cdef int status = self._scan(row, peaks)
        if status != SAMPLER_OK:
            return -status
        cdef bint penalised = self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0
        if (penalised and distinct > 0) or self.biased:
            memcpy(self.work, row, self.n * sizeof(float))
            row = self.work
            penalise(self.work, ids, distinct, uses, self.repetition, self.presence, self.frequency)
            add_bias(self.work, self.bias_ids, self.bias_values, self.biased)
            scan_row(row, self.n, self.block_max)
        cdef int64_t best = argmax_row(row, self.n, self.block_max)
        if best == self.n:
            with gil:
                raise ValueError("peaks of another row")
        if self.greedy:
            return best
        cdef double top = row[best], scale = 1.0 / self.temperature, total
        cdef double u = draw(self.seed, self.choice, position)
        if self.top_k == self.n and self.top_p >= 1.0:
            total = row_weight(row, self.n, top, scale, self.min_p, self.block_sum)
            return walk_row(row, self.n, top, scale, self.min_p, self.block_sum, u * total)
        return self._pick_filtered(row, top, scale, u)

    cdef int64_t _pick_filtered(self, const float *row, double top, double scale, double u) except -10 nogil:
        """Draw from the best ids by top_k, then top_p, then min_p; ids best first."""
        cdef int64_t wanted = self.top_k, count, kept, i
        cdef double total = 0.0, running
        if self.top_k == self.n:  # top_p alone: most often a few ids hold its mass, so ask for few first
            total = row_weight(row, self.n, top, scale, 0.0, self.block_sum)
            wanted = min(self.n, 256)
        while True:
            self._hold(self.n if wanted * 8 > self.n else wanted)
            if wanted * 8 > self.n:
                sort_all(row, self.n, self.ranks, self.spare)
                count = wanted
            else:
                count = select_best(row, self.n, self.block_max, wanted, self.ranks)
            for i in range(count):
                self.weights[i] = weight_of(row[<uint32_t>self.ranks[i]], top, scale, 0.0)
            if self.top_k < self.n:
                total = 0.0
                for i in range(count):
                    total += self.weights[i]
            running = self.weights[0]
            kept = 1
            while kept < count and running < self.top_p * total:
                running += self.weights[kept]
                kept += 1
            if wanted == self.top_k or running >= self.top_p * total:
                break
            wanted = self.n
        while kept > 1 and (self.weights[kept - 1] < self.min_p or self.weights[kept - 1] == 0.0):
            kept -= 1
        total = 0.0
        for i in range(kept):
            total += self.weights[i]
        running = 0.0
        for i in range(kept):
            running += self.weights[i]
            if u * total < running:
                return <uint32_t>self.ranks[i]
        return <uint32_t>self.ranks[kept - 1]

    def logprobs(self, Row row not None, int64_t chosen, int64_t alternatives):
        """(log-probability of `chosen`, [(id, log-probability)] of the best ids).

        Under the model's own distribution: no temperature, penalties or filters.
        """
        self._check(row)
        if not 0 <= chosen < self.n:
            raise ValueError("id out of range")
        cdef int64_t count = 0, wanted = min(max(alternatives, 0), self.n), i
        cdef double top, norm, logprob = 0.0
        cdef const float *at = row.at
        cdef uint64_t mode
        cdef int status
        with nogil:
            mode = rase_fp_enter()
            try:
                status = self._scan(at, row.peaks)
                if status == SAMPLER_OK:
                    top = at[min(argmax_row(at, self.n, self.block_max), self.n - 1)]
                    norm = rase_log(row_weight(at, self.n, top, 1.0, 0.0, self.block_sum))
                    logprob = at[chosen] - top - norm
                    if wanted:
                        self._hold(wanted)
                        count = select_best(at, self.n, self.block_max, wanted, self.ranks)
                    for i in range(count):
                        self.weights[i] = at[<uint32_t>self.ranks[i]] - top - norm
            finally:
                rase_fp_leave(mode)
        if status != SAMPLER_OK:
            raise ValueError("logits that nothing may be chosen from")
        return logprob, [(<uint32_t>self.ranks[i], self.weights[i]) for i in range(count)]


def peaks(Variant variant not None, const float[::1] row, float[::1] out):
    """What a program of `variant` leaves beside a row of logits: 16 numbers for each whole block of 256."""
    if out.shape[0] != row.shape[0] // SAMPLER_BLOCK * 16:
        raise ValueError("sizes do not fit")
    if out.shape[0]:
        variant.table.peaks(&row[0], row.shape[0], &out[0])


def philox(counter, key):
    """The four 32-bit words of Philox4x32-10, for its published test vectors."""
    cdef uint32_t c[4]
    cdef uint32_t k[2]
    cdef uint32_t out[4]
    c[0], c[1], c[2], c[3] = counter
    k[0], k[1] = key
    philox4x32(c, k, out)
    return out[0], out[1], out[2], out[3]


def uniform(uint64_t seed, uint32_t choice, uint64_t position):
    """The number in [0, 1) that decides the token at `position` of answer `choice`."""
    return draw(seed, choice, position)
