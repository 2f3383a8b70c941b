"""Runs one part of a recurrent layer, some channels or one value head, over the tokens of one sequence.

A page of the layer's cache group holds the state after the last token that ran in its positions. Where the next page
exists the state is carried over to it, and what stays behind is a snapshot; where a page is absent, the state goes on
to the next that exists. Parts share nothing, so whoever takes which part changes no bit.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from rase._kernels.kernels cimport RASE_PAGE_TOKENS, rase_delta_task
from rase._kernels.plan cimport CAUSAL_CONV, CONV_GROUPS


cdef void recur(const rase_kernels *k, const Step *step, const Run *run, int64_t part, const int32_t *table,
                uint8_t **pages, float *scratch) noexcept nogil:
    """``table`` is the sequence's row of page ids; the page of the last token exists, and that before the first."""
    cdef int64_t position = run.position, end = run.position + run.count, page, stop, token
    cdef const float *before = NULL
    cdef float *state
    if position > 0:
        before = _state(k, step, pages[table[(position - 1) // RASE_PAGE_TOKENS]], part)
    if step.kind == CAUSAL_CONV:
        for token in range((_channels(k, step, part) + k.rows_per_group - 1) // k.rows_per_group):
            step.format.panel(step.packed + (part * CONV_GROUPS + token) * step.group_bytes, step.cols, 0, step.cols,
                              scratch + token * step.cols * k.rows_per_group)
    while position < end:
        page = position // RASE_PAGE_TOKENS
        while table[page] < 0:
            page += 1
        stop = min(end, (page + 1) * RASE_PAGE_TOKENS)
        state = _state(k, step, pages[table[page]], part)
        if state != before:
            _carry(k, step, before, state, part)
        token = run.first + position - run.position
        if step.kind == CAUSAL_CONV:
            _convolve(k, step, part, token, stop - position, state, scratch)
        else:
            _delta(k, step, part, token, stop - position, state)
        before, position = state, stop


cdef inline float *_state(const rase_kernels *k, const Step *step, uint8_t *page, int64_t part) noexcept nogil:
    """Where this part of the layer's state begins in a page."""
    cdef int64_t channels = CONV_GROUPS * k.rows_per_group
    cdef int64_t offset = part * (channels if step.kind == CAUSAL_CONV else step.head_dim * step.size)
    return <float *>(page + step.k_offset) + offset


cdef inline int64_t _channels(const rase_kernels *k, const Step *step, int64_t part) noexcept nogil:
    """How many a part has."""
    cdef int64_t most = CONV_GROUPS * k.rows_per_group
    return min(most, step.rows - part * most)


cdef void _carry(const rase_kernels *k, const Step *step, const float *before, float *state,
                 int64_t part) noexcept nogil:
    """Begin with the state ``before``, or with zeros where it is NULL."""
    cdef int64_t rows = 1, stride = 0, j
    cdef size_t size = step.head_dim * step.size * sizeof(float)
    if step.kind == CAUSAL_CONV:
        rows, stride, size = step.cols - 1, step.rows, _channels(k, step, part) * sizeof(float)
    for j in range(rows):
        if before == NULL:
            memset(state + j * stride, 0, size)
        else:
            memcpy(state + j * stride, before + j * stride, size)


cdef void _convolve(const rase_kernels *k, const Step *step, int64_t part, int64_t token, int64_t count, float *state,
                    const float *panels) noexcept nogil:
    cdef int64_t first = part * CONV_GROUPS * k.rows_per_group
    k.causal_conv(panels, step.cols, _channels(k, step, part), step.x + token * step.x_stride + first, step.x_stride,
                  count, state, step.rows, step.out + token * step.out_stride + first, step.out_stride)


cdef void _delta(const rase_kernels *k, const Step *step, int64_t head, int64_t token, int64_t count,
                 float *state) noexcept nogil:
    cdef int64_t shared = head % step.kv_heads if step.tiled_heads else head // (step.parts // step.kv_heads)
    cdef rase_delta_task task
    task.q = step.x + token * step.x_stride + shared * step.head_dim
    task.k = step.y + token * step.y_stride + shared * step.head_dim
    task.v = step.z + token * step.z_stride + head * step.size
    task.out = step.out + token * step.out_stride + head * step.size
    task.decay = step.decay + token * step.decay_stride + head
    task.beta = step.beta + token * step.beta_stride + head
    task.q_stride, task.k_stride, task.v_stride, task.out_stride = (
        step.x_stride, step.y_stride, step.z_stride, step.out_stride)
    task.decay_stride, task.beta_stride = step.decay_stride, step.beta_stride
    task.n_tokens, task.k_dim, task.v_dim, task.scale, task.state = count, step.head_dim, step.size, step.scale, state
    k.delta_rule(&task)
