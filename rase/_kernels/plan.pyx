"""A plan: the steps of a compiled model, divided into phases, and the memory that its workers need beside the caller's.

backends/cpu.py lowers a graph to ``add_step`` calls. Addresses are integers; their giver keeps the memory alive.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from rase._kernels.kernels cimport (
    RASE_CHUNK, RASE_FEW_TILES, RASE_KV_FORMATS, RASE_PAGE_TOKENS, RASE_TILE_BYTES, RASE_TILES_LEFT,
    RASE_TILE_SUMS, Variant,
)

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>
    /* In huge pages, where there are any: a block of weights in tiles would lie in 128 small ones. */
    static int rase_scratch(void **block, size_t bytes) {
    #ifdef MADV_HUGEPAGE
        const size_t page = (size_t)2 << 20;
        if (bytes > page / 2) {
            bytes = (bytes + page - 1) / page * page;
            if (posix_memalign(block, page, bytes)) return 1;
            madvise(*block, bytes, MADV_HUGEPAGE); /* refused: slower, not wrong */
            return 0;
        }
    #endif
        return posix_memalign(block, 64, bytes);
    }
    """
    int rase_scratch(void **block, size_t bytes)

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **, size_t, size_t)


cdef enum:
    PARTS_FLOATS = 1 << 18  # at least, for the parts of attention


cdef float *_address(object address) except? NULL:
    return <float *><uintptr_t>address


cdef class Plan:
    """Steps over preallocated buffers, for at most ``max_rows`` rows and ``workers`` workers; ``kv`` is the number of
    the format of K and V in pages."""

    def __cinit__(self, Variant variant not None, int64_t max_rows, int workers, int64_t context_pages, int kv=0):
        if not 0 <= kv < RASE_KV_FORMATS:
            raise ValueError(f"no KV format {kv}")
        self.variant, self.k, self.tiles = variant, variant.table, variant.tiles
        self.kv = self.k.kv[kv]
        self.max_rows, self.workers, self.table_pages = max_rows, workers, context_pages
        self.rope_tables = [None] * MAX_ROPES
        self.runs = <Run *>malloc(max_rows * sizeof(Run))
        self.scratch = <float **>malloc(workers * sizeof(void *))
        self.tables = <const uint8_t ***>malloc(workers * sizeof(void *))
        if self.runs == NULL or self.scratch == NULL or self.tables == NULL:
            raise MemoryError
        memset(self.scratch, 0, workers * sizeof(void *))
        memset(self.tables, 0, workers * sizeof(void *))

    def __dealloc__(self):
        cdef int i
        free(self.steps)
        free(self.acts)
        free(self.phases)
        free(self.tickets)
        free(self.shares)
        free(self.runs)
        for i in range(MAX_CACHES):
            free(self.pages[i])
        free(self.routes.order)
        for i in range(self.workers):
            if self.scratch != NULL:
                free(self.scratch[i])
            if self.tables != NULL:
                free(self.tables[i])
        free(self.scratch)
        free(self.tables)
        for i in range(self.n_schedules):
            free(self.schedules[i].units)
            free(self.schedules[i].counters)
        free(self.schedules)
        free(self.parts)

    def add_act(self, int kind, int64_t cols, q, wide, d, sums, dsums):
        """A buffer of quantized activations for max_rows rows, laid out as in kernels.h; returns its index."""
        self.acts = <Act *>realloc(self.acts, (self.n_acts + 1) * sizeof(Act))
        if self.acts == NULL:
            raise MemoryError
        cdef Act *act = &self.acts[self.n_acts]
        act.kind, act.cols = kind, cols
        act.q, act.wide, act.d = <int8_t *>_address(q), <int16_t *>_address(wide), _address(d)
        act.sums, act.sides, act.dsums = <int32_t *>_address(sums), <int16_t *>_address(sums), _address(dsums)
        self.n_acts += 1
        return self.n_acts - 1

    def add_step(self, str kind not None, **fields):
        """Append a step; ``fields`` are those of the Step structure, buffers and weights as addresses."""
        names = {"embed": EMBED, "norm": NORM, "quantize": QUANTIZE, "linear": LINEAR, "bias": BIAS, "rotate": ROTATE,
                 "silu": SILU, "silu_mul": SILU_MUL, "mul": MUL, "add": ADD, "store": STORE, "attend": ATTEND,
                 "gather": GATHER, "logits": LOGITS, "gelu": GELU, "gelu_tanh": GELU_TANH, "scale": SCALE,
                 "slice": SLICE, "route": ROUTE, "dispatch": DISPATCH, "spread": SPREAD,
                 "linear_routed": LINEAR_ROUTED, "mix": MIX, "layer_norm": LAYER_NORM, "hidden": HIDDEN,
                 "sigmoid": SIGMOID, "l2_norm": L2_NORM, "decay": DECAY, "causal_conv": CAUSAL_CONV,
                 "delta_rule": DELTA_RULE}
        shares = {"linear": OUTPUT_SPLIT, "logits": OUTPUT_SPLIT, "attend": HEAD_SPLIT, "linear_routed": EXPERT_SPLIT,
                  "dispatch": ONE_WORKER, "causal_conv": STATE_SPLIT, "delta_rule": STATE_SPLIT}
        self.steps = <Step *>realloc(self.steps, (self.n_steps + 1) * sizeof(Step))
        if self.steps == NULL:
            raise MemoryError
        cdef Step *step = &self.steps[self.n_steps]
        memset(step, 0, sizeof(Step))
        step.kind = names[kind]
        step.share = shares.get(kind, ROW_LOCAL)
        step.act, step.left = fields.pop("act", -1), fields.pop("left", -1)
        step.space = {"tokens": TOKENS, "outputs": OUTPUTS, "routed": ROUTED}[fields.pop("space", "tokens")]
        step.integer, step.elsewhere = fields.pop("integer", True), fields.pop("elsewhere", False)
        step.index = {"ids": IDS, "positions": POSITIONS, "first": FIRST}[fields.pop("index", "ids")]
        step.bidirectional = fields.pop("bidirectional", False)
        step.experts, step.top_k = fields.pop("experts", 0), fields.pop("top_k", 0)
        step.renormalize = fields.pop("renormalize", True)
        step.x, step.y = _address(fields.pop("x", 0)), _address(fields.pop("y", 0))
        step.out, step.z = _address(fields.pop("out", 0)), _address(fields.pop("z", 0))
        step.decay, step.beta = _address(fields.pop("decay", 0)), _address(fields.pop("beta", 0))
        step.z_stride, step.decay_stride = fields.pop("z_stride", 0), fields.pop("decay_stride", 0)
        step.beta_stride, step.parts = fields.pop("beta_stride", 0), fields.pop("parts", 0)
        step.tiled_heads = fields.pop("tiled_heads", False)
        step.x_stride, step.y_stride = fields.pop("x_stride", 0), fields.pop("y_stride", 0)
        step.out_stride = fields.pop("out_stride", 0)
        step.cols, step.rows, step.group = fields.pop("cols", 0), fields.pop("rows", 0), fields.pop("group", 1)
        step.head_dim, step.n_dims = fields.pop("head_dim", 0), fields.pop("n_dims", 0)
        step.kv_heads, step.window = fields.pop("kv_heads", 0), fields.pop("window", 0)
        step.k_offset, step.v_offset = fields.pop("k_offset", 0), fields.pop("v_offset", 0)
        step.cache = fields.pop("cache", 0)
        if not 0 <= step.cache < MAX_CACHES:
            raise ValueError("too many cache groups")
        step.rope, step.neighbour = fields.pop("rope", 0), fields.pop("neighbour", False)
        step.scale, step.tiled = fields.pop("scale", 1.0), fields.pop("tiled", False)
        step.start, step.size, step.period = fields.pop("start", 0), fields.pop("size", 0), fields.pop("period", 1)
        step.soft_cap = fields.pop("soft_cap", 0.0)
        if "format" in fields:
            step.format = self.variant.format(fields.pop("format"))
            step.packed = <const uint8_t *>_address(fields.pop("packed"))
            step.group_bytes = step.format.group_bytes(step.cols)
            step.expert_bytes = (step.rows + self.k.rows_per_group - 1) // self.k.rows_per_group * step.group_bytes
        if fields:
            raise TypeError(f"unknown fields {sorted(fields)}")
        if step.left >= 0 and self.tiles == NULL:
            raise ValueError(f"{self.variant.name} has no bf16 tiles")
        cdef int64_t need = 0
        self.routes.experts = max(self.routes.experts, step.experts)
        self.routes.top_k = max(self.routes.top_k, step.top_k)
        if step.left >= 0:
            need = TILE_GROUPS * TILE_STEPS * RASE_TILE_BYTES // 4 + RASE_TILE_SUMS(self.max_rows, TILE_GROUPS)
        elif step.share in (OUTPUT_SPLIT, EXPERT_SPLIT):
            need = step.cols * self.k.rows_per_group
        elif step.kind == CAUSAL_CONV:
            step.parts = (step.rows + CONV_GROUPS * self.k.rows_per_group - 1) // (CONV_GROUPS * self.k.rows_per_group)
            need = CONV_GROUPS * step.cols * self.k.rows_per_group
        elif step.share == HEAD_SPLIT:
            need = self.k.attention_scratch(step.group, (step.head_dim + 15) // 16 * 16)
            self.add_schedule(step)
        self.scratch_floats = max(self.scratch_floats, need)
        self.n_steps += 1

    cdef int add_schedule(self, Step *step) except -1:
        """Give an attention step the schedule of its shape, and room for the parts of one token at full context."""
        cdef int64_t part = self.k.attention_part((step.head_dim + 15) // 16 * 16)
        cdef int64_t chunks = (self.table_pages * RASE_PAGE_TOKENS + RASE_CHUNK - 1) // RASE_CHUNK
        cdef Schedule *s
        self.parts_floats = max(PARTS_FLOATS, self.parts_floats, chunks * step.kv_heads * step.group * part)
        for step.schedule in range(self.n_schedules):
            s = &self.schedules[step.schedule]
            if (s.kv_heads, s.group, s.window, s.bidirectional, s.part) == (
                    step.kv_heads, step.group, step.window, step.bidirectional, part):
                return 0
        s = <Schedule *>realloc(self.schedules, (self.n_schedules + 1) * sizeof(Schedule))
        if s == NULL:
            raise MemoryError
        self.schedules, step.schedule = s, self.n_schedules
        memset(&s[self.n_schedules], 0, sizeof(Schedule))
        s = &s[self.n_schedules]
        s.kv_heads, s.group, s.window, s.part = step.kv_heads, step.group, step.window, part
        s.bidirectional = step.bidirectional
        s.tokens = self.k.attention_tokens(step.group)
        self.n_schedules += 1
        return 0

    def steps_of_phases(self):
        """The steps (first, last) of each phase, in order: what ``run`` can begin and end with."""
        return [(self.phases[i].first, self.phases[i].last) for i in range(self.n_phases)]

    def finish(self):
        """Divide the steps into phases and allocate the workers' scratch; to be called once, after the last step."""
        cdef int i, j, dispatch = -1
        cdef bint reads
        cdef void *block = NULL
        cdef Phase *phase = NULL
        cdef Step *step
        self.phases = <Phase *>malloc(self.n_steps * sizeof(Phase))
        if self.n_steps >= RASE_MAX_PHASES:
            raise ValueError("too many steps")
        if self.phases == NULL or posix_memalign(&block, 64, self.n_steps * sizeof(rase_tickets)):
            raise MemoryError
        self.tickets = <rase_tickets *>block
        memset(self.tickets, 0, self.n_steps * sizeof(rase_tickets))
        if posix_memalign(&block, 64, self.workers * sizeof(rase_share)):
            raise MemoryError
        self.shares = <rase_share *>block
        for i in range(self.n_steps):
            step = &self.steps[i]
            if step.kind == DISPATCH:
                dispatch = i
            # Rows move between workers where the share changes, and from the batch's tokens to the output rows.
            # A state's tokens are one worker's, so that two steps with states are two phases; and so are two matrices
            # where one reads what the other writes.
            reads = False
            if phase != NULL and step.share in (OUTPUT_SPLIT, EXPERT_SPLIT):
                for j in range(phase.first, i):
                    reads = reads or self.steps[j].out == step.x
            if (phase == NULL or phase.share != step.share or phase.space != step.space or reads
                    or step.share == STATE_SPLIT):
                phase = &self.phases[self.n_phases]
                self.n_phases += 1
                phase.first, phase.share, phase.space, phase.groups = i, step.share, step.space, 0
                phase.dispatch = dispatch
            phase.last = i + 1
            if step.share in (OUTPUT_SPLIT, EXPERT_SPLIT):
                phase.groups += (step.rows + self.k.rows_per_group - 1) // self.k.rows_per_group
        self._allocate_routes()
        for i in range(self.workers):
            block = NULL
            if rase_scratch(&block, max(self.scratch_floats, 16) * sizeof(float)):
                raise MemoryError
            self.scratch[i] = <float *>block
            self.tables[i] = <const uint8_t **>malloc(
                (self.table_pages + RASE_CHUNK // RASE_PAGE_TOKENS) * sizeof(void *))
            if self.tables[i] == NULL:
                raise MemoryError
        block = NULL
        if posix_memalign(&block, 64, max(self.parts_floats, 16) * sizeof(float)):
            raise MemoryError
        self.parts = <float *>block
        return (self.scratch_floats * self.workers + self.parts_floats) * sizeof(float)

    cdef _allocate_routes(self):
        cdef int64_t pairs = self.max_rows * self.routes.top_k, experts = self.routes.experts
        if pairs == 0:
            return
        cdef int32_t *memory = <int32_t *>malloc((2 * pairs + 3 * experts + 1) * sizeof(int32_t))
        if memory == NULL:
            raise MemoryError
        self.routes.order, self.routes.place = memory, memory + pairs
        self.routes.first = memory + 2 * pairs
        self.routes.generated = self.routes.first + experts + 1
        self.routes.active = self.routes.generated + experts

    cdef void linear_tiles(self, Step *step, int worker, int64_t first, int64_t last, int64_t m, float *out,
                           int64_t out_stride, int64_t *unpack_ns) noexcept nogil:
        """Packed groups [first, last) times m prompt rows in bf16 tiles, to ``out``.

        Few rows meet each step of weights as it is unpacked. For more, blocks of groups, and of depth within them, are
        unpacked once; ``unpack_ns``, unless NULL, counts it.
        """
        cdef int64_t total = (step.cols + 31) // 32, block, part, g, n, s, count, i, begin = 0
        cdef const uint8_t *left = <const uint8_t *>self.acts[step.left].q
        cdef uint8_t *right = <uint8_t *>self.scratch[worker]
        if m <= 16 * RASE_FEW_TILES:
            if RASE_TILES_LEFT(m, step.cols) > TILE_GROUPS * TILE_STEPS * RASE_TILE_BYTES:
                right = NULL
            self.tiles.few(step.format, step.packed + first * step.group_bytes, last - first, step.cols, left, m, right,
                           out + 16 * first, out_stride)
            return
        cdef float *sums = self.scratch[worker] + TILE_GROUPS * TILE_STEPS * RASE_TILE_BYTES // 4
        for block in range((last - first + TILE_GROUPS - 1) // TILE_GROUPS):
            g = first + block * TILE_GROUPS
            n = min(TILE_GROUPS, last - g)
            for part in range((total + TILE_STEPS - 1) // TILE_STEPS):
                s = part * TILE_STEPS
                count = min(TILE_STEPS, total - s)
                if unpack_ns != NULL:
                    begin = rase_nanoseconds()
                for i in range(n):
                    self.tiles.right(step.format, step.packed + (g + i) * step.group_bytes, step.cols, 32 * s,
                                     min(step.cols, 32 * (s + count)), right + i * count * RASE_TILE_BYTES)
                if unpack_ns != NULL:
                    unpack_ns[0] += rase_nanoseconds() - begin
                self.tiles.multiply(left, total, s, count, m, right, n, sums, out + 16 * g, out_stride)

    def set_rope(self, int index, const float[:, ::1] cos not None, const float[:, ::1] sin not None):
        """Table ``index``: cos and sin (positions, half) that cover every position of the next batch; kept alive here,
        so that no interrupt can come between a new table and the end of the old one."""
        cdef bint alike = cos.shape[0] == sin.shape[0] and cos.shape[1] == sin.shape[1]
        if not 0 <= index < MAX_ROPES or cos.shape[0] < 1 or not alike:
            raise ValueError("too many rotary tables, or tables of different sizes")
        self.rope_tables[index] = (cos, sin)
        self.rope_cos[index], self.rope_sin[index], self.rope_half[index] = &cos[0, 0], &sin[0, 0], cos.shape[1]

    def set_pages(self, int group, list addresses):
        """The storage of every page id of a cache group."""
        cdef int64_t i, n = len(addresses)
        cdef void *places
        if not 0 <= group < MAX_CACHES:
            raise ValueError("too many cache groups")
        places = realloc(self.pages[group], max(n, 1) * sizeof(void *))
        if places == NULL:
            raise MemoryError
        self.pages[group] = <uint8_t **>places
        for i in range(n):
            self.pages[group][i] = <uint8_t *>_address(addresses[i])
