# Which rows of a batch go to which expert.
from libc.stdint cimport int64_t

from rase._kernels.plan cimport Routes, Step

cdef void sort_by_expert(Step *step, Routes *routes, int64_t n_tokens, int64_t n_generated) noexcept nogil
