"""The row-local steps of a pass: norms, sums, activations, rotation, quantization, the KV store.

Each takes rows one by one, so a worker takes some rows through all steps of a phase while they are in its cache. What a
step computes for a row depends on that row alone. program.pyx shares the rows out.
"""

from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from rase._kernels.kernels cimport RASE_ACT_Q16_32, RASE_PAGE_TOKENS, RASE_SIDES, RASE_WIDE_AT, RASE_WIDE_FROM
from rase._kernels.plan cimport (
    ACT_BF16, ADD, BIAS, DECAY, EMBED, GATHER, GELU, GELU_TANH, HIDDEN, IDS, L2_NORM, LAYER_NORM, MIX, MUL, NORM,
    OUTPUTS, POSITIONS, QUANTIZE, ROTATE, ROUTE, ROUTED, SCALE, SIGMOID, SILU, SILU_MUL, SLICE, SPREAD, STORE, Act,
    Plan, Rows, Step,
)

cdef extern from *:
    """
    static inline void rase_expect(const uint8_t *p, int64_t n) {
        for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(p + i, 1, 3);
    }
    """
    void rase_expect(const uint8_t *p, int64_t n) noexcept nogil


cdef class RowSteps(Plan):
    """A plan that takes rows of a batch through its row-local steps."""

    cdef int64_t rows_of(self, Rows space) noexcept nogil:
        if space == ROUTED:
            return self.n_tokens * self.routes.top_k
        return self.n_outputs if space == OUTPUTS else self.n_tokens

    cdef void row_local(self, Step *step, int64_t first, int64_t last) noexcept nogil:
        cdef int64_t row, i, n = step.cols
        cdef const float *x
        cdef const float *y
        cdef float *out
        if step.kind == STORE:
            for row in range(first, last):
                self.expect(step, row)
        for row in range(first, last):
            x, y, out = step.x + row * step.x_stride, step.y + row * step.y_stride, step.out + row * step.out_stride
            if step.kind == NORM:
                self.k.rms_norm(x, step.y, n, step.group, step.scale, out)
            elif step.kind == LAYER_NORM:
                self.k.layer_norm(x, step.y, n, step.scale, out)
            elif step.kind == QUANTIZE:
                self.quantize(step, x, row)
            elif step.kind == ADD:
                self.k.add(x, y, n, out)
            elif step.kind == BIAS:
                self.k.add(x, step.y, n, out)
            elif step.kind == MUL:
                self.k.mul(x, y, n, out)
            elif step.kind == SILU:
                self.k.silu(x, n, out)
            elif step.kind == SILU_MUL:
                self.k.silu_mul(x, y, n, out)
            elif step.kind == GELU:
                self.k.gelu(x, n, out)
            elif step.kind == GELU_TANH:
                self.k.gelu_tanh(x, n, out)
            elif step.kind == SIGMOID:
                self.k.sigmoid(x, n, out)
            elif step.kind == L2_NORM:
                self.k.l2_norm(x, n, step.group, step.scale, out)
            elif step.kind == DECAY:
                self.k.decay(x, step.y, step.z, n, out)
            elif step.kind == SCALE:
                self.k.scale(x, step.scale, n, out)
            elif step.kind == SLICE:
                for i in range(n // step.period):
                    memcpy(out + i * step.size, x + i * step.period + step.start, step.size * sizeof(float))
            elif step.kind == ROUTE:
                self.k.route(x, step.experts, step.top_k, step.renormalize, step.scale, out)
            elif step.kind == SPREAD:
                memcpy(out, step.x + self.routes.order[row] // step.top_k * step.x_stride, n * sizeof(float))
            elif step.kind == MIX:
                self.mix(step, y, row, out)
            elif step.kind == ROTATE:
                memcpy(out, x, n * sizeof(float))
                self.k.rotate(out, n // step.head_dim, step.head_dim, step.n_dims, step.neighbour,
                              self.rope_cos[step.rope] + self.positions[row] * self.rope_half[step.rope],
                              self.rope_sin[step.rope] + self.positions[row] * self.rope_half[step.rope])
            elif step.kind == STORE:
                self.store(step, x, y, row)
            elif step.kind == EMBED:
                self.embed(step, out, row)
            elif step.kind == GATHER:
                memcpy(out, step.x + self.logits_rows[row] * step.x_stride, n * sizeof(float))
            elif step.kind == HIDDEN:
                memcpy(self.logits + row * self.logits_stride, step.x + self.logits_rows[row] * step.x_stride,
                       n * sizeof(float))

    cdef void embed(self, Step *step, float *out, int64_t row) noexcept nogil:
        cdef int64_t r = self.k.rows_per_group, id = 0
        if step.index == IDS:
            id = self.ids[row]
        elif step.index == POSITIONS:
            id = self.positions[row]
        step.format.row(step.packed + id // r * step.group_bytes, <int>(id % r), step.cols, out)
        if step.scale != 1.0:
            self.k.scale(out, step.scale, step.cols, out)

    cdef void quantize(self, Step *step, const float *x, int64_t row) noexcept nogil:
        cdef Act *act = &self.acts[step.act]
        cdef int64_t n = act.cols
        if act.kind == ACT_BF16:
            if row >= self.n_generated:
                self.tiles.left(x, n, row - self.n_generated, <uint8_t *>act.q)
            return
        cdef int64_t token = self.routes.order[row] // self.routes.top_k if step.space == ROUTED else row
        if not step.integer and token >= self.n_generated:
            return
        cdef int16_t *wide = act.wide + RASE_WIDE_AT(row, n) if self.rows_of(step.space) >= RASE_WIDE_FROM else NULL
        if act.kind == RASE_ACT_Q16_32:
            self.k.quantize_32(x, n, act.q + 2 * row * n, wide, act.d + row * (n // 32),
                               act.sums + 2 * row * (n // 32), act.dsums + row * (n // 32))
        else:
            self.k.quantize_256(x, n, act.q + 2 * row * n, wide, act.d + row * (n // 256),
                                act.sides + row * (n // 256) * RASE_SIDES)

    cdef void store(self, Step *step, const float *key, const float *value, int64_t row) noexcept nogil:
        """K and V of one token to its page: K of all heads, then V, each in the layout of the KV format."""
        cdef int64_t slot = self.positions[row] % RASE_PAGE_TOKENS, head
        cdef int64_t stride = (step.head_dim + 15) // 16 * 16, each = self.kv.head_bytes(stride)
        cdef uint8_t *page = self.page_of(step, row)
        for head in range(step.kv_heads):
            self.kv.store(key + head * step.head_dim, step.head_dim, stride, page + step.k_offset + head * each, slot)
            self.kv.store(value + head * step.head_dim, step.head_dim, stride, page + step.v_offset + head * each, slot)

    cdef void expect(self, Step *step, int64_t row) noexcept nogil:
        """Ask for the memory that `store` writes: rows of pages lie far apart, and each line would be waited for."""
        cdef int64_t slot = self.positions[row] % RASE_PAGE_TOKENS, head
        cdef int64_t each = self.kv.head_bytes((step.head_dim + 15) // 16 * 16), size = each // RASE_PAGE_TOKENS
        cdef uint8_t *page = self.page_of(step, row)
        for head in range(step.kv_heads):
            rase_expect(page + step.k_offset + head * each + slot * size, size)
            rase_expect(page + step.v_offset + head * each + slot * size, size)

    cdef uint8_t *page_of(self, Step *step, int64_t row) noexcept nogil:
        """The page that holds the position of a row."""
        cdef int64_t run = 0
        while run + 1 < self.n_runs and self.runs[run + 1].first <= row:
            run += 1
        return self.page(step.cache, self.runs[run].table, self.positions[row] // RASE_PAGE_TOKENS)

    cdef uint8_t *page(self, int cache, int64_t table, int64_t index) noexcept nogil:
        return self.pages[cache][self.page_tables[cache * self.group_stride + table * self.table_stride + index]]

    cdef void mix(self, Step *step, const float *route, int64_t token, float *out) noexcept nogil:
        """The outputs of a token's experts, ascending, times their gates."""
        cdef int64_t j, k = step.top_k
        memset(out, 0, step.cols * sizeof(float))
        for j in range(k):
            self.k.add_scaled(step.x + self.routes.place[token * k + j] * step.x_stride, route[k + j], step.cols, out)
