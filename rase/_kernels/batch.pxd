# What goes into a pass and what comes out of it.
from libc.stdint cimport int32_t, uint8_t

cdef class BatchView:
    cdef object _ids, _positions, _sequences, _tables, _roles, _logits_rows
    cdef const int32_t[::1] ids, sequences, logits_rows
    cdef const int32_t[:, ::1] positions
    cdef const int32_t[:, :, ::1] tables
    cdef const uint8_t[::1] roles

cdef class Output:
    cdef readonly object rows, peaks
    cdef object _rows_memory, _peaks_memory
    cdef float[:, ::1] logits, tops
    cdef Py_ssize_t _capacity, _columns, _padded, _blocks, _held

    cdef _show(self, Py_ssize_t rows)
    cdef Py_ssize_t _references(self)
