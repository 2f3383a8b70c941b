"""The program walker: one OpenMP region per forward pass, in which all workers walk the same phases of steps.

A step is one of three kinds by how it is shared out, and a phase is a run of steps of one kind. *Row-local* (norms,
quantization, sums, rotation, KV store): a unit is some rows, taken through all steps of the phase, which fuses them.
*Output-split* (linears): a unit is some packed groups of one matrix. *Head-split* (attention): a unit is a block of
query tokens, some KV heads and a run of chunks (attend.pyx). *Expert-split* (mixtures): a unit is some packed groups of
one expert's matrix, for the tokens that chose it; one worker has sorted them. *State-split* (recurrent layers): a unit
is one part of a state and all tokens of a sequence (recur.pyx). Workers take units until a phase is done
(tickets.h) and meet only there. They split outputs, never a reduction: the bits depend neither on their number nor on
who takes what (rule R1). Nothing is allocated while a step runs. backends/cpu.py owns the memory behind the pointers.
"""

from cython.parallel cimport parallel, threadid
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from rase._kernels.attend cimport AttendUnit, Run, schedule_attention
from rase._kernels.batch cimport BatchView, Output
from rase._kernels.kernels cimport RASE_CHUNK, RASE_PAGE_TOKENS, RASE_PEAK_BLOCK, rase_act, rase_attention_task
from rase._kernels.plan cimport (
    ATTEND_NS, EXPERT_SPLIT, HEAD_SPLIT, LINEAR_NS, LOGITS, ONE_WORKER, OUTPUT_SPLIT, ROW_LOCAL, STATE_SPLIT,
    TILE_GROUPS, UNPACK_NS, Act, Phase, Step, rase_count_down, rase_nanoseconds, rase_share_reset, rase_tickets,
    rase_tickets_finish, rase_tickets_reset, rase_tickets_take, rase_tickets_wait,
)
from rase._kernels.recur cimport recur
from rase._kernels.routes cimport sort_by_expert
from rase._kernels.rows cimport RowSteps

cdef extern from "fpenv.h" nogil:
    uint64_t rase_fp_enter()
    void rase_fp_leave(uint64_t)

cdef extern from "omp.h" nogil:
    int omp_get_num_threads()

cdef enum:
    UNITS_PER_WORKER = 16   # of a phase of linears
    MANY_ROWS = 64          # of prompts: from here on, weights are unpacked to blocks, and units are whole blocks
    BLOCK_GROUPS = 16       # groups of such a unit where no tiles are: a set of quants/wide.h
    UNIT_BYTES = 1 << 19    # of weights, at most, where units are no blocks: the last one is waited for


cdef class Walker(RowSteps):
    """A plan that runs batches, one at a time."""

    def run(self, BatchView batch not None, int64_t n_generated, Output out not None, int threads, bint timed=False,
            int first=0, int last=-1):
        """Run a checked batch into ``out``, which has a row for each of its outputs.

        With ``timed`` returns (unpack, linear, attention) nanoseconds of worker 0. ``first`` and ``last`` bound the
        phases that run: all of a batch have to, in order, and what is between two runs is the caller's time.
        """
        cdef int64_t i, n = batch.ids.shape[0]
        cdef const int32_t *positions = &batch.positions[0, 0]
        cdef const int32_t *sequences = &batch.sequences[0]
        self.n_outputs = batch.logits_rows.shape[0]
        if (n > self.max_rows or self.n_outputs > self.max_rows or out.logits.shape[0] < self.n_outputs
                or threads > self.workers or threads < 1):
            raise ValueError("batch exceeds the program")
        self.ids, self.positions, self.page_tables = &batch.ids[0], positions, &batch.tables[0, 0, 0]
        self.table_stride, self.n_tokens, self.n_generated = batch.tables.shape[2], n, n_generated
        self.group_stride = batch.tables.shape[1] * batch.tables.shape[2]
        self.logits_rows = &batch.logits_rows[0] if self.n_outputs else NULL
        self.logits = &out.logits[0, 0] if self.n_outputs else NULL
        self.peaks = &out.tops[0, 0] if self.n_outputs and out.tops.shape[1] else NULL
        self.logits_stride, self.peaks_stride = out.logits.shape[1], out.tops.shape[1]
        self.n_runs = 0
        cdef Run *run = NULL
        for i in range(n):
            if (i == 0 or i == n_generated or sequences[i] != sequences[i - 1]
                    or positions[i] != positions[i - 1] + 1):
                self.runs[self.n_runs] = Run(i, 0, positions[i], sequences[i])
                run = &self.runs[self.n_runs]
                self.n_runs += 1
            run.count += 1
        for i in range(self.n_schedules):
            schedule_attention(&self.schedules[i], self.runs, self.n_runs, threads, self.parts, self.parts_floats)
        for i in range(self.n_phases):
            rase_tickets_reset(&self.tickets[i])
        for i in range(threads):
            rase_share_reset(&self.shares[i])
        self.timed, self.first_phase = timed, max(first, 0)
        self.last_phase = self.n_phases if last < 0 else min(last, self.n_phases)
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
        cdef bint attends, tiles = self.tiles != NULL
        cdef Phase *phase
        cdef rase_tickets *tickets
        cdef int64_t begin = 0
        cdef int i, unit, units, size, finished
        if tiles:
            self.tiles.begin()
        for i in range(self.first_phase, self.last_phase):
            phase, tickets = &self.phases[i], &self.tickets[i]
            if self.timed and worker == 0:
                begin = rase_nanoseconds()
            size = self.unit_size(phase, workers)
            units = self.units(phase, size)
            finished = 0
            while True:
                unit = rase_tickets_take(self.shares, worker, workers, i + 1, units)
                if unit < 0:
                    break
                self.do_unit(phase, worker, unit, units, size)
                finished += 1
            if finished:
                rase_tickets_finish(tickets, finished, units)
            rase_tickets_wait(tickets, units)
            if self.timed and worker == 0 and phase.share not in (ROW_LOCAL, ONE_WORKER):
                attends = phase.share == HEAD_SPLIT or phase.share == STATE_SPLIT
                self.spent[ATTEND_NS if attends else LINEAR_NS] += rase_nanoseconds() - begin
        if tiles:
            self.tiles.end()
        rase_fp_leave(state)

    cdef int unit_size(self, Phase *phase, int workers) noexcept nogil:
        """Rows or groups of one unit: some units for each worker, so that a slow one leaves some to others."""
        cdef int64_t rows = self.rows_of(phase.space), groups, block
        if phase.share == EXPERT_SPLIT:
            groups = self.steps[phase.dispatch].n_active * phase.groups
            return <int>max(1, groups // (UNITS_PER_WORKER * workers if workers > 1 else 1))
        if phase.share == ROW_LOCAL:
            return <int>max(1, min(16, rows // (2 * workers)))
        groups = max(1, phase.groups // (UNITS_PER_WORKER * workers if workers > 1 else 1))
        if rows - self.n_generated > MANY_ROWS:  # the activations pass once for each block
            if self.tiles != NULL:
                block = min(TILE_GROUPS, phase.groups // (2 * workers))
            else:  # half of them where that leaves more units
                block = max(min(BLOCK_GROUPS, phase.groups // (4 * workers)),
                            min(BLOCK_GROUPS // 2, phase.groups // (2 * workers)))
            block = max(1, block)
            groups = (groups + block - 1) // block * block
        elif phase.share == OUTPUT_SPLIT:
            groups = max(1, min(groups, UNIT_BYTES // <int64_t>self.steps[phase.first].group_bytes))
        if self.steps[phase.first].kind == LOGITS:  # whole blocks of peaks
            groups = (groups * self.k.rows_per_group + RASE_PEAK_BLOCK - 1) // RASE_PEAK_BLOCK * RASE_PEAK_BLOCK
            groups //= self.k.rows_per_group
        return <int>groups

    cdef int units(self, Phase *phase, int size) noexcept nogil:
        cdef int64_t total = 0, r = self.k.rows_per_group
        cdef int i
        if phase.share == ROW_LOCAL:
            total = (self.rows_of(phase.space) + size - 1) // size
        elif phase.share == ONE_WORKER:
            total = 1
        elif phase.share == EXPERT_SPLIT:
            for i in range(phase.first, phase.last):
                total += self.steps[phase.dispatch].n_active * (((self.steps[i].rows + r - 1) // r + size - 1) // size)
        elif phase.share == HEAD_SPLIT:
            total = self.schedules[self.steps[phase.first].schedule].n_units
        elif phase.share == STATE_SPLIT:
            total = self.n_runs * self.steps[phase.first].parts
        else:
            for i in range(phase.first, phase.last):
                total += ((self.steps[i].rows + r - 1) // r + size - 1) // size
        return <int>total

    cdef void do_unit(self, Phase *phase, int worker, int unit, int units, int size) noexcept nogil:
        cdef int64_t first, last, groups, r = self.k.rows_per_group
        cdef int i, here
        if phase.share == ROW_LOCAL:
            first = <int64_t>unit * size
            last = min(first + size, self.rows_of(phase.space))
            for i in range(phase.first, phase.last):
                self.row_local(&self.steps[i], first, last)
        elif phase.share == HEAD_SPLIT:
            self.attend(&self.steps[phase.first], worker, unit)
        elif phase.share == STATE_SPLIT:
            self.state(&self.steps[phase.first], worker, unit)
        elif phase.share == ONE_WORKER:
            sort_by_expert(&self.steps[phase.first], &self.routes, self.n_tokens, self.n_generated)
        elif phase.share == EXPERT_SPLIT:
            for i in range(phase.first, phase.last):
                groups = (self.steps[i].rows + r - 1) // r
                here = <int>((groups + size - 1) // size)
                if unit < here * self.steps[phase.dispatch].n_active:
                    first = unit % here * size
                    last = min(groups, first + size)
                    self.expert(&self.steps[i], worker, self.routes.active[unit // here], first, last)
                    return
                unit -= here * <int>self.steps[phase.dispatch].n_active
        else:
            for i in range(phase.first, phase.last):
                groups = (self.steps[i].rows + r - 1) // r
                here = <int>((groups + size - 1) // size)
                if unit < here:
                    self.linear(&self.steps[i], worker, <int64_t>unit * size, min(groups, (<int64_t>unit + 1) * size))
                    if self.steps[i].kind == LOGITS:
                        self.finish_logits(&self.steps[i], unit * size * r, min(groups, (<int64_t>unit + 1) * size) * r)
                    return
                unit -= here

    cdef void expert(self, Step *step, int worker, int64_t e, int64_t first, int64_t last) noexcept nogil:
        """Packed groups [first, last) of expert e, for the rows of the tokens that chose it."""
        cdef int64_t begin = self.routes.first[e], end = self.routes.first[e + 1]
        cdef int64_t own = end if step.integer else begin + self.routes.generated[e]
        self.product(step, worker, step.packed + e * step.expert_bytes, first, last, begin, own, end)

    cdef void linear(self, Step *step, int worker, int64_t first, int64_t last) noexcept nogil:
        """Packed groups [first, last) of one matrix, for all rows."""
        cdef int64_t rows = self.rows_of(step.space)
        self.product(step, worker, step.packed, first, last, 0, rows if step.integer else self.n_generated, rows)

    cdef void product(self, Step *step, int worker, const uint8_t *packed, int64_t first, int64_t last, int64_t start,
                      int64_t own, int64_t rows) noexcept nogil:
        """Groups [first, last) of ``packed``: rows [start, own) by the format's path, [own, rows) by the hybrid."""
        cdef int64_t r = self.k.rows_per_group, g
        cdef int64_t out_stride = self.logits_stride if step.kind == LOGITS else step.out_stride
        cdef float *out = self.logits if step.kind == LOGITS else step.out
        cdef Act *buffer
        cdef rase_act act
        if step.elsewhere:
            rows = own
        act.f32, act.f32_stride = step.x, step.x_stride
        if step.act >= 0:
            buffer = &self.acts[step.act]
            act.q, act.wide, act.d, act.dsums = buffer.q, buffer.wide, buffer.d, buffer.dsums
            act.sums, act.sides = buffer.sums, buffer.sides
        elif own - start >= 8 and step.left < 0:
            own = start  # float weights: the panel product gives the same bits and shares one unpacking
        if own > start:
            step.format.dot(packed + first * step.group_bytes, last - first, step.cols, &act, start, own,
                            out + first * r, out_stride)
        if own < rows and step.left >= 0:
            self.linear_tiles(step, worker, first, last, rows - own, out + own * out_stride, out_stride,
                              &self.spent[UNPACK_NS] if self.timed and worker == 0 else NULL)
        elif own < rows:
            for g in range(first, last):
                self.panel(step, worker, packed + g * step.group_bytes)
                self.k.gemm_f32(self.scratch[worker], step.cols, step.x + own * step.x_stride, step.x_stride,
                                rows - own, out + own * out_stride + g * r, out_stride)

    cdef void panel(self, Step *step, int worker, const uint8_t *group) noexcept nogil:
        """A packed group in float32 to the worker's scratch."""
        cdef int64_t begin = rase_nanoseconds() if self.timed and worker == 0 else 0
        step.format.panel(group, step.cols, 0, step.cols, self.scratch[worker])
        if begin:
            self.spent[UNPACK_NS] += rase_nanoseconds() - begin

    cdef void finish_logits(self, Step *step, int64_t first, int64_t last) noexcept nogil:
        """Scale and cap columns [first, last) of the logits, and find their peaks, while they are in the cache."""
        cdef int64_t row
        cdef float *out
        for row in range(self.n_outputs):
            out = self.logits + row * self.logits_stride + first
            if step.scale != 1.0:
                self.k.scale(out, step.scale, last - first, out)
            if step.soft_cap > 0.0:
                self.k.soft_cap(out, step.soft_cap, last - first, out)
            if self.peaks != NULL:
                self.k.peaks(out, last - first, self.peaks + row * self.peaks_stride + first // RASE_PEAK_BLOCK * 16)

    cdef void state(self, Step *step, int worker, int unit) noexcept nogil:
        cdef Run *run = &self.runs[unit // step.parts]
        recur(self.k, step, run, unit % step.parts,
              self.page_tables + step.cache * self.group_stride + run.table * self.table_stride,
              self.pages[step.cache], self.scratch[worker])

    cdef int64_t seen(self, Step *step, AttendUnit *unit, int64_t *first) noexcept nogil:
        """The first position that a unit reads, to ``first``; and the one after the last."""
        cdef Run *run = &self.runs[unit.run]
        cdef int64_t position = run.position + unit.first, end = position + unit.count
        if step.bidirectional:
            end = max(end, run.position + run.count)
        first[0] = unit.first_chunk * RASE_CHUNK
        if step.window:  # pages that a window has left behind may be gone
            first[0] = max(first[0], position - step.window + 1)
        return min(unit.last_chunk * RASE_CHUNK, end)

    cdef void expect_unit(self, Step *step, int index, const uint8_t **pages, rase_attention_task *task) noexcept nogil:
        """Let ``task`` fetch the keys that unit ``index``, if there is one, reads first."""
        cdef AttendUnit *unit = &self.schedules[step.schedule].units[index]
        cdef int64_t first, end, page, chunk
        task.next_high = 0
        if index >= self.schedules[step.schedule].n_units:
            return
        end = self.seen(step, unit, &first)
        chunk = first // RASE_CHUNK * RASE_CHUNK
        task.next_low, task.next_high = first - chunk, min(end - chunk, RASE_CHUNK)
        task.next_offset = step.k_offset + unit.head * self.kv.head_bytes(task.head_stride)
        task.next_pages = pages
        for page in range(task.next_low // RASE_PAGE_TOKENS, (task.next_high - 1) // RASE_PAGE_TOKENS + 1):
            pages[page] = self.page(step.cache, self.runs[unit.run].table, chunk // RASE_PAGE_TOKENS + page)

    cdef void attend(self, Step *step, int worker, int index) noexcept nogil:
        cdef AttendUnit *unit = &self.schedules[step.schedule].units[index]
        cdef Run *run = &self.runs[unit.run]
        cdef rase_attention_task task
        cdef const uint8_t **pages = self.tables[worker]
        cdef int64_t stride = (step.head_dim + 15) // 16 * 16, each = self.kv.head_bytes(stride)
        cdef int64_t head, page, first, chunk, token = run.first + unit.first, part = self.k.attention_part(stride)
        cdef int64_t last = self.seen(step, unit, &first)
        task.q_stride, task.out_stride = step.x_stride, step.out_stride
        task.group, task.head_dim, task.head_stride = step.group, step.head_dim, stride
        task.window, task.scale, task.soft_cap = step.window, step.scale, step.soft_cap
        task.seen = run.position + run.count if step.bidirectional else 0
        task.scratch = self.scratch[worker]
        task.n_tokens, task.first_position = unit.count, run.position + unit.first
        task.first_chunk, task.last_chunk, task.pages = unit.first_chunk, unit.last_chunk, pages
        chunk = first // RASE_CHUNK * RASE_CHUNK
        for page in range(first // RASE_PAGE_TOKENS, (last + RASE_PAGE_TOKENS - 1) // RASE_PAGE_TOKENS):
            pages[page] = self.page(step.cache, run.table, page)
        for head in range(unit.head, unit.head + unit.heads):
            task.q = step.x + token * step.x_stride + head * step.group * step.head_dim
            task.out = step.out + token * step.out_stride + head * step.group * step.head_dim
            task.k_offset, task.v_offset = step.k_offset + head * each, step.v_offset + head * each
            task.parts = NULL
            if head + 1 < unit.head + unit.heads:
                task.next_pages, task.next_offset = pages + chunk // RASE_PAGE_TOKENS, task.k_offset + each
                task.next_low, task.next_high = first - chunk, min(last - chunk, RASE_CHUNK)
            else:
                self.expect_unit(step, index + 1, pages + self.table_pages, &task)
            if unit.parts != NULL:
                task.parts = unit.parts + (unit.first_chunk - unit.begin) * unit.count * step.group * part
            if step.tiled and run.first >= self.n_generated:
                self.kv.tiled(&task)
            else:
                self.kv.attention(&task)
        if unit.parts != NULL and rase_count_down(unit.missing) == 0:
            unit.missing[0] = unit.spans  # for the next layer
            task.parts, task.first_chunk, task.last_chunk = unit.parts, unit.begin, unit.end
            self.k.attention_merge(&task)
