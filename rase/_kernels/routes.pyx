"""Sorts the pairs (token, choice) of a mixture of experts, so that each expert has its rows beside each other."""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset


cdef void sort_by_expert(Step *step, Routes *routes, int64_t n_tokens, int64_t n_generated) noexcept nogil:
    """Sort by expert, then token, from the routes step.x (tokens, 2 top_k).

    How many experts are active is kept with the step: a worker that comes late counts an old phase's units by it,
    when another layer's routes may be here already.
    """
    cdef int64_t t, e, pair, k = step.top_k
    cdef int32_t row
    step.n_active = 0
    memset(routes.first, 0, (step.experts + 1) * sizeof(int32_t))
    memset(routes.generated, 0, step.experts * sizeof(int32_t))
    for pair in range(n_tokens * k):
        t = pair // k
        e = <int64_t>step.x[t * step.x_stride + pair % k]
        routes.first[e + 1] += 1
        routes.generated[e] += t < n_generated
    for e in range(step.experts):
        if routes.first[e + 1]:
            routes.active[step.n_active] = <int32_t>e
            step.n_active += 1
        routes.first[e + 1] += routes.first[e]
    for pair in range(n_tokens * k):  # first[e] counts up to the next expert's start, and is set back below
        e = <int64_t>step.x[pair // k * step.x_stride + pair % k]
        row = routes.first[e]
        routes.first[e] += 1
        routes.order[row], routes.place[pair] = <int32_t>pair, row
    for e in range(step.experts, 0, -1):
        routes.first[e] = routes.first[e - 1]
    routes.first[0] = 0
