# The steps of a plan that take each row by itself, and the batch that they read. rows.pyx does them.
from libc.stdint cimport int32_t, int64_t, uint8_t

from rase._kernels.plan cimport COUNTERS, Plan, Rows, Step


cdef class RowSteps(Plan):
    # the batch that is running
    cdef const int32_t *ids
    cdef const int32_t *positions
    cdef const int32_t *page_tables
    cdef const int32_t *logits_rows
    cdef int64_t table_stride, group_stride, n_tokens, n_generated, n_outputs, logits_stride, peaks_stride
    cdef float *logits
    cdef float *peaks
    cdef bint timed
    cdef int64_t spent[COUNTERS]
    cdef int64_t rows_of(self, Rows space) noexcept nogil
    cdef void row_local(self, Step *step, int64_t first, int64_t last) noexcept nogil
    cdef void embed(self, Step *step, float *out, int64_t row) noexcept nogil
    cdef void quantize(self, Step *step, const float *x, int64_t row) noexcept nogil
    cdef void store(self, Step *step, const float *key, const float *value, int64_t row) noexcept nogil
    cdef void expect(self, Step *step, int64_t row) noexcept nogil
    cdef uint8_t *page_of(self, Step *step, int64_t row) noexcept nogil
    cdef uint8_t *page(self, int cache, int64_t table, int64_t index) noexcept nogil
    cdef void mix(self, Step *step, const float *route, int64_t token, float *out) noexcept nogil
