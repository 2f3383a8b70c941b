# A row of logits as the sampler takes it.
from libc.stdint cimport int64_t

cdef class Row:
    cdef object _owners      # of the memory
    cdef Py_ssize_t _index
    cdef const float *at
    cdef const float *peaks  # NULL: nobody found them
    cdef int64_t size, peaks_size

    @staticmethod
    cdef Row of(tuple owners, Py_ssize_t index, const float *at, int64_t size, const float *peaks, int64_t peaks_size)
