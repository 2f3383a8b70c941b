"""The program walker: one OpenMP region per forward pass, in which all workers walk the same phases of steps.

A step is one of three kinds by how it is shared out, and a phase is a run of steps of one kind. *Row-local* (norms,
quantization, sums, rotation, KV store): a unit is some rows, taken through all steps of the phase, which fuses them.
*Output-split* (linears): a unit is some packed groups of one matrix. *Head-split* (attention): a unit is a block of
query tokens, some KV heads and a run of chunks (attend.pyx). Workers take units until a phase is done (tickets.h) and
meet only there. They split outputs, never a reduction: the bits depend neither on their number nor on who takes what (rule R1). Nothing is
allocated while a step runs. backends/cpu.py owns the memory behind the pointers.
"""

from cython.parallel cimport parallel, threadid
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from rase._kernels.attend cimport AttendUnit, Run, schedule_attention
from rase._kernels.kernels cimport (
    RASE_ACT_Q16_32, RASE_CHUNK, RASE_PAGE_TOKENS, RASE_TILE_BYTES, rase_act, rase_attention_task,
)
from rase._kernels.plan cimport (
    ACT_BF16, ADD, ATTEND_NS, BIAS, COUNTERS, EMBED, GATHER, HEAD_SPLIT, LINEAR_NS, LOGITS, MUL, NORM, OUTPUT_SPLIT, QUANTIZE,
    ROTATE, ROW_LOCAL, SILU, SILU_MUL, STORE, TILE_GROUPS, TILE_STEPS, UNPACK_NS, Act, Phase, Plan, Step, rase_count_down,
    rase_nanoseconds,
    rase_tickets, rase_tickets_finish, rase_tickets_reset, rase_tickets_take, rase_tickets_wait,
)

cdef extern from "fpenv.h" nogil:
    uint64_t rase_fp_enter()
    void rase_fp_leave(uint64_t)

cdef extern from "omp.h" nogil:
    int omp_get_num_threads()

cdef enum:
    UNITS_PER_WORKER = 2    # of a phase of linears: more cut the streams of weights that a core reads ahead


cdef class Walker(Plan):
    """A plan that runs batches, one at a time."""

    # the batch that is running
    cdef const int32_t *ids
    cdef const int32_t *positions
    cdef const int32_t *page_tables
    cdef const int32_t *logits_rows
    cdef int64_t table_stride, group_stride, n_tokens, n_generated, n_outputs, logits_stride
    cdef float *logits
    cdef bint timed
    cdef int64_t spent[COUNTERS]

    def run(self, const int32_t[::1] ids, const int32_t[::1] positions, const int32_t[::1] sequences,
            const int32_t[:, :, ::1] page_tables, int64_t n_generated, const int32_t[::1] logits_rows,
            float[:, ::1] logits, int threads, bint timed=False):
        """Run a checked batch; logits (m, padded vocabulary).

        With ``timed`` returns (unpack, linear, attention) nanoseconds of worker 0.
        """
        cdef int64_t i, n = ids.shape[0]
        if n > self.max_rows or logits_rows.shape[0] > self.max_rows or threads > self.workers or threads < 1:
            raise ValueError("batch exceeds the program")
        self.ids, self.positions, self.page_tables = &ids[0], &positions[0], &page_tables[0, 0, 0]
        self.table_stride, self.n_tokens, self.n_generated = page_tables.shape[2], n, n_generated
        self.group_stride = page_tables.shape[1] * page_tables.shape[2]
        self.n_outputs = logits_rows.shape[0]
        self.logits_rows = &logits_rows[0] if self.n_outputs else NULL
        self.logits = &logits[0, 0] if self.n_outputs else NULL
        self.logits_stride = logits.shape[1]
        self.n_runs = 0
        cdef Run *run = NULL
        for i in range(n):
            if i == 0 or sequences[i] != sequences[i - 1] or positions[i] != positions[i - 1] + 1:
                self.runs[self.n_runs] = Run(i, 0, positions[i], sequences[i])
                run = &self.runs[self.n_runs]
                self.n_runs += 1
            run.count += 1
        for i in range(self.n_schedules):
            schedule_attention(&self.schedules[i], self.runs, self.n_runs, threads, self.parts, self.parts_floats)
        for i in range(self.n_phases):
            rase_tickets_reset(&self.tickets[i])
        self.timed = timed
        memset(self.spent, 0, sizeof(self.spent))
        with nogil:
            if threads == 1:
                self.work(0, 1)
            else:
                with parallel(num_threads=threads):
                    self.work(threadid(), omp_get_num_threads())
        return (self.spent[UNPACK_NS], self.spent[LINEAR_NS], self.spent[ATTEND_NS]) if timed else None

    cdef void work(self, int worker, int workers) noexcept nogil:
        """What every worker does: for each phase, take units until none is left, then wait until all are done."""
        cdef uint64_t state = rase_fp_enter()
        cdef bint tiles = self.tiles != NULL and self.n_generated < self.n_tokens
        cdef Phase *phase
        cdef rase_tickets *tickets
        cdef int64_t begin = 0
        cdef int i, unit, units, size, finished
        if tiles:
            self.tiles.begin()
        for i in range(self.n_phases):
            phase, tickets = &self.phases[i], &self.tickets[i]
            if self.timed and worker == 0:
                begin = rase_nanoseconds()
            size = self.unit_size(phase, workers)
            units = self.units(phase, size)
            finished = 0
            while True:
                unit = rase_tickets_take(tickets, units)
                if unit >= units:
                    break
                self.do_unit(phase, worker, unit, units, size)
                finished += 1
            if finished:
                rase_tickets_finish(tickets, finished, units)
            rase_tickets_wait(tickets, units)
            if self.timed and worker == 0 and phase.share != ROW_LOCAL:
                self.spent[LINEAR_NS if phase.share == OUTPUT_SPLIT else ATTEND_NS] += rase_nanoseconds() - begin
        if tiles:
            self.tiles.end()
        rase_fp_leave(state)

    cdef int unit_size(self, Phase *phase, int workers) noexcept nogil:
        """Rows or groups of one unit: some units for each worker, so that a slow one leaves the rest to others."""
        cdef int64_t rows = self.n_outputs if phase.outputs else self.n_tokens
        if phase.share == ROW_LOCAL:
            return <int>max(1, min(16, rows // (2 * workers)))
        return <int>max(1, phase.groups // (UNITS_PER_WORKER * workers if workers > 1 else 1))

    cdef int units(self, Phase *phase, int size) noexcept nogil:
        cdef int64_t total = 0, r = self.k.rows_per_group
        cdef int i
        if phase.share == ROW_LOCAL:
            total = ((self.n_outputs if phase.outputs else self.n_tokens) + size - 1) // size
        elif phase.share == HEAD_SPLIT:
            total = self.schedules[self.steps[phase.first].schedule].n_units
        else:
            for i in range(phase.first, phase.last):
                total += ((self.steps[i].rows + r - 1) // r + size - 1) // size
        return <int>total

    cdef void do_unit(self, Phase *phase, int worker, int unit, int units, int size) noexcept nogil:
        cdef int64_t first, last, groups, r = self.k.rows_per_group
        cdef int i, here
        if phase.share == ROW_LOCAL:
            first = <int64_t>unit * size
            last = min(first + size, self.n_outputs if phase.outputs else self.n_tokens)
            for i in range(phase.first, phase.last):
                self.row_local(&self.steps[i], first, last)
        elif phase.share == HEAD_SPLIT:
            self.attend(&self.steps[phase.first], worker, unit)
        else:
            for i in range(phase.first, phase.last):
                groups = (self.steps[i].rows + r - 1) // r
                here = <int>((groups + size - 1) // size)
                if unit < here:
                    self.linear(&self.steps[i], worker, <int64_t>unit * size, min(groups, (<int64_t>unit + 1) * size))
                    return
                unit -= here

    cdef void row_local(self, Step *step, int64_t first, int64_t last) noexcept nogil:
        cdef int64_t row, n = step.cols
        cdef const float *x
        cdef const float *y
        cdef float *out
        for row in range(first, last):
            x, y, out = step.x + row * step.x_stride, step.y + row * step.y_stride, step.out + row * step.out_stride
            if step.kind == NORM:
                self.k.rms_norm(x, step.y, n, step.group, step.scale, out)
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

    cdef void embed(self, Step *step, float *out, int64_t row) noexcept nogil:
        cdef int64_t r = self.k.rows_per_group, id = self.ids[row]
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
        if not step.integer and row >= self.n_generated:
            return
        if act.kind == RASE_ACT_Q16_32:
            self.k.quantize_32(x, n, act.q + 2 * row * n, act.d + row * (n // 32), act.sums + 2 * row * (n // 32),
                               act.dsums + row * (n // 32))
        else:
            self.k.quantize_256(x, n, act.q + 2 * row * n, act.d + row * (n // 256), act.sums + 2 * row * (n // 16))

    cdef void store(self, Step *step, const float *key, const float *value, int64_t row) noexcept nogil:
        """K and V of one token to its page: K of all heads, then V, each in the layout of the KV format."""
        cdef int64_t position = self.positions[row], slot = position % RASE_PAGE_TOKENS, head, run = 0
        cdef int64_t stride = (step.head_dim + 15) // 16 * 16, each = self.kv.head_bytes(stride)
        while run + 1 < self.n_runs and self.runs[run + 1].first <= row:
            run += 1
        cdef uint8_t *page = self.page(step.cache, self.runs[run].table, position // RASE_PAGE_TOKENS)
        for head in range(step.kv_heads):
            self.kv.store(key + head * step.head_dim, step.head_dim, stride, page + step.k_offset + head * each, slot)
            self.kv.store(value + head * step.head_dim, step.head_dim, stride, page + step.v_offset + head * each, slot)

    cdef inline uint8_t *page(self, int cache, int64_t table, int64_t index) noexcept nogil:
        return self.pages[cache][self.page_tables[cache * self.group_stride + table * self.table_stride + index]]

    cdef void linear(self, Step *step, int worker, int64_t first, int64_t last) noexcept nogil:
        """Packed groups [first, last): generated rows by the format's path, prompt rows by it or the hybrid (R3)."""
        cdef int64_t r = self.k.rows_per_group, g
        cdef int64_t rows = self.n_outputs if step.outputs else self.n_tokens
        cdef int64_t own = rows if step.integer else self.n_generated
        cdef int64_t out_stride = self.logits_stride if step.kind == LOGITS else step.out_stride
        cdef float *out = self.logits if step.kind == LOGITS else step.out
        cdef float *panel = self.scratch[worker]
        cdef int64_t begin
        cdef Act *buffer
        cdef rase_act act
        act.f32, act.f32_stride, act.q, act.d, act.dsums, act.sums = step.x, step.x_stride, NULL, NULL, NULL, NULL
        if step.act >= 0:
            buffer = &self.acts[step.act]
            act.q, act.d, act.dsums, act.sums = buffer.q, buffer.d, buffer.dsums, buffer.sums
        elif own >= 8:
            own = 0  # float weights: the panel product gives the same bits and shares one unpacking
        if own > 0:
            step.format.dot(step.packed + first * step.group_bytes, last - first, step.cols, &act, 0, own,
                            out + first * r, out_stride)
        if own < rows and step.left >= 0:
            self.linear_tiles(step, worker, first, last, rows - own, out + own * out_stride, out_stride)
        elif own < rows:
            for g in range(first, last):
                begin = self.unpack_begins(worker)
                step.format.panel(step.packed + g * step.group_bytes, step.cols, 0, step.cols, panel)
                self.unpack_ends(worker, begin)
                self.k.gemm_f32(panel, step.cols, step.x + own * step.x_stride, step.x_stride, rows - own,
                                out + own * out_stride + g * r, out_stride)

    cdef inline int64_t unpack_begins(self, int worker) noexcept nogil:
        return rase_nanoseconds() if self.timed and worker == 0 else 0

    cdef inline void unpack_ends(self, int worker, int64_t begin) noexcept nogil:
        if self.timed and worker == 0:
            self.spent[UNPACK_NS] += rase_nanoseconds() - begin

    cdef void linear_tiles(self, Step *step, int worker, int64_t first, int64_t last, int64_t m, float *out,
                           int64_t out_stride) noexcept nogil:
        """The m prompt rows by bf16 tiles: blocks of groups, and of depth within them, unpacked once for all rows."""
        cdef int64_t total = (step.cols + 31) // 32, block, part, g, n, s, count, i, begin
        cdef const uint8_t *left = <const uint8_t *>self.acts[step.left].q
        cdef uint8_t *right = <uint8_t *>self.scratch[worker]
        cdef float *sums = self.scratch[worker] + TILE_GROUPS * TILE_STEPS * RASE_TILE_BYTES // 4
        for block in range((last - first + TILE_GROUPS - 1) // TILE_GROUPS):
            g = first + block * TILE_GROUPS
            n = min(TILE_GROUPS, last - g)
            for part in range((total + TILE_STEPS - 1) // TILE_STEPS):
                s = part * TILE_STEPS
                count = min(TILE_STEPS, total - s)
                begin = self.unpack_begins(worker)
                for i in range(n):
                    self.tiles.right(step.format, step.packed + (g + i) * step.group_bytes, step.cols, 32 * s,
                                     min(step.cols, 32 * (s + count)), right + i * count * RASE_TILE_BYTES)
                self.unpack_ends(worker, begin)
                self.tiles.multiply(left, total, s, count, m, right, n, sums, out + 16 * g, out_stride)

    cdef void attend(self, Step *step, int worker, int index) noexcept nogil:
        cdef AttendUnit *unit = &self.schedules[step.schedule].units[index]
        cdef Run *run = &self.runs[unit.run]
        cdef rase_attention_task task
        cdef const uint8_t **pages = self.tables[worker]
        cdef int64_t stride = (step.head_dim + 15) // 16 * 16, each = self.kv.head_bytes(stride)
        cdef int64_t head, page, first, last, token = run.first + unit.first, part = self.k.attention_part(stride)
        task.q_stride, task.out_stride = step.x_stride, step.out_stride
        task.group, task.head_dim, task.head_stride = step.group, step.head_dim, stride
        task.window, task.scale, task.scratch = step.window, step.scale, self.scratch[worker]
        task.n_tokens, task.first_position = unit.count, run.position + unit.first
        task.first_chunk, task.last_chunk, task.pages = unit.first_chunk, unit.last_chunk, pages
        first, last = unit.first_chunk * RASE_CHUNK, min(unit.last_chunk * RASE_CHUNK, task.first_position + unit.count)
        if step.window:  # pages that a window has left behind may be gone
            first = max(first, task.first_position - step.window + 1)
        for page in range(first // RASE_PAGE_TOKENS, (last + RASE_PAGE_TOKENS - 1) // RASE_PAGE_TOKENS):
            pages[page] = self.page(step.cache, run.table, page)
        for head in range(unit.head, unit.head + unit.heads):
            task.q = step.x + token * step.x_stride + head * step.group * step.head_dim
            task.out = step.out + token * step.out_stride + head * step.group * step.head_dim
            task.k_offset, task.v_offset = step.k_offset + head * each, step.v_offset + head * each
            task.parts = NULL
            if unit.parts != NULL:
                task.parts = unit.parts + (unit.first_chunk - unit.begin) * unit.count * step.group * part
            self.kv.attention(&task)
        if unit.parts != NULL and rase_count_down(unit.missing) == 0:
            unit.missing[0] = unit.spans  # for the next layer
            task.parts, task.first_chunk, task.last_chunk = unit.parts, unit.begin, unit.end
            self.k.attention_merge(&task)
