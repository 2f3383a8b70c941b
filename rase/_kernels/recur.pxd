# The state of a recurrent layer, over the tokens of one sequence.
from libc.stdint cimport int32_t, int64_t, uint8_t

from rase._kernels.attend cimport Run
from rase._kernels.kernels cimport rase_kernels
from rase._kernels.plan cimport Step

cdef void recur(const rase_kernels *k, const Step *step, const Run *run, int64_t part, const int32_t *table,
                uint8_t **pages, float *scratch) noexcept nogil
