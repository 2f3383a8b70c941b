# A compiled model as program.pyx walks it: steps, phases, buffers, pages. plan.pyx builds it.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from rase._kernels.attend cimport Run, Schedule
from rase._kernels.kernels cimport Variant, rase_format, rase_kernels, rase_kv, rase_tiles

cdef extern from "tickets.h" nogil:
    ctypedef struct rase_tickets:
        pass
    ctypedef struct rase_share:
        pass
    enum:
        RASE_MAX_PHASES
    void rase_tickets_reset(rase_tickets *)
    void rase_share_reset(rase_share *)
    int rase_tickets_take(rase_share *, int, int, int, int)
    void rase_tickets_finish(rase_tickets *, int, int)
    void rase_tickets_wait(rase_tickets *, int)
    int rase_count_down(int *)
    int64_t rase_nanoseconds()

cdef enum:
    MAX_ROPES = 16
    MAX_CACHES = 16         # cache groups of a graph
    CONV_GROUPS = 16        # packed groups of channels in one part of a convolution's state
    ACT_BF16 = 3            # the left side of bf16 tiles, beside the RASE_ACT_* of kernels.h
    TILE_GROUPS = 16        # groups and depth steps of one block of bf16 tiles: 512 KiB of the second-level cache, so
    TILE_STEPS = 32         # that the activations pass once for 256 rows of weights

cdef enum Kind:
    EMBED, NORM, QUANTIZE, LINEAR, BIAS, ROTATE, SILU, SILU_MUL, MUL, ADD, STORE, ATTEND, GATHER, LOGITS,
    GELU, GELU_TANH, SCALE, SLICE, ROUTE, DISPATCH, SPREAD, LINEAR_ROUTED, MIX, LAYER_NORM, HIDDEN,
    SIGMOID, L2_NORM, DECAY, CAUSAL_CONV, DELTA_RULE

cdef enum Share:
    ROW_LOCAL, OUTPUT_SPLIT, HEAD_SPLIT, EXPERT_SPLIT, ONE_WORKER, STATE_SPLIT

cdef enum Index:            # which row of its matrix an EMBED takes
    IDS, POSITIONS, FIRST

cdef enum Rows:             # what the rows of a step are
    TOKENS, OUTPUTS, ROUTED

cdef enum:                  # indices of Walker.spent
    UNPACK_NS, LINEAR_NS, ATTEND_NS, COUNTERS

ctypedef struct Step:
    Kind kind
    Share share
    Rows space              # the batch's tokens, those that want logits, or one per token and chosen expert
    bint integer            # LINEAR, QUANTIZE: prompt rows too take the format's own path
    bint elsewhere          # LINEAR: prompt rows are computed by the caller, between two runs of phases
    bint tiled              # ATTEND: prompt tokens in bf16 tiles
    bint bidirectional      # ATTEND: tokens see their whole run
    Index index             # EMBED
    float *x                # (rows, x_stride)
    float *y
    float *out
    const float *z          # DELTA_RULE: values; DECAY: bias
    const float *decay      # DELTA_RULE, as beta
    const float *beta
    int64_t x_stride, y_stride, out_stride, z_stride, decay_stride, beta_stride
    int64_t cols, rows      # depth and outputs of a matrix; cols is the width of row-local steps
    int64_t group           # elements normalised together; query heads per KV head
    int64_t head_dim, n_dims, kv_heads, window
    int cache               # cache group: which page table and which pages
    int64_t k_offset, v_offset  # bytes into a page: K of all heads, V of all heads
    int schedule            # ATTEND: which of the plan's schedules
    int64_t start, size, period  # SLICE: which elements of each period; DELTA_RULE: size of a value head
    int64_t parts           # of a state that workers share: groups of channels, or value heads
    bint tiled_heads        # DELTA_RULE: value head h has key head h % kv_heads
    int act                 # index of a quantized activation buffer, -1 for float32
    int left                # LINEAR: index of the buffer of bf16 tiles for prompt rows, -1 for none
    int rope
    bint neighbour
    int64_t experts, top_k  # of a mixture
    int64_t n_active        # DISPATCH, in the batch that runs: the experts that have rows
    bint renormalize
    size_t expert_bytes     # one packed matrix of a stack
    float scale             # of embeddings, scores, logits, SCALE; the epsilon of norms
    float soft_cap          # of scores and of logits; 0 = none
    const rase_format *format
    const uint8_t *packed
    size_t group_bytes

ctypedef struct Act:
    int kind
    int64_t cols
    int8_t *q
    int16_t *wide
    float *d
    float *dsums
    int32_t *sums
    int16_t *sides

ctypedef struct Phase:      # steps [first, last) of one share
    int first, last
    Share share
    Rows space
    int dispatch            # the last DISPATCH step before, -1 without one
    int64_t groups          # packed groups of all its matrices

ctypedef struct Routes:     # of the layer that runs: pairs (token, choice), sorted by expert, then token
    int64_t top_k, experts
    int32_t *order          # routed row -> pair
    int32_t *place          # pair -> routed row
    int32_t *first          # (experts + 1,) the first routed row of each expert
    int32_t *generated      # (experts,) how many of an expert's rows are generated tokens, which come first
    int32_t *active         # the experts that have rows, ascending

cdef class Plan:
    cdef Variant variant
    cdef const rase_kernels *k
    cdef const rase_tiles *tiles
    cdef Step *steps
    cdef int n_steps
    cdef Act *acts
    cdef int n_acts
    cdef list rope_tables           # keeps the memory behind rope_cos and rope_sin
    cdef const float *rope_cos[MAX_ROPES]
    cdef const float *rope_sin[MAX_ROPES]
    cdef int64_t rope_half[MAX_ROPES]
    cdef Phase *phases
    cdef rase_tickets *tickets      # one per phase
    cdef rase_share *shares         # one per worker
    cdef int n_phases, first_phase, last_phase  # those that run
    cdef uint8_t **pages[MAX_CACHES]
    cdef int64_t scratch_floats, table_pages
    cdef float **scratch            # one per worker: dequantized panel or attention scratch
    cdef const uint8_t ***tables    # one per worker: the pages of a task, then those of the next unit's first chunk
    cdef const rase_kv *kv          # how pages hold K and V
    cdef Schedule *schedules        # one for each shape of attention
    cdef int n_schedules
    cdef float *parts               # of attention whose chunks several workers share
    cdef int64_t parts_floats
    cdef int workers
    cdef Run *runs
    cdef int64_t n_runs, max_rows
    cdef int add_schedule(self, Step *step) except -1
    cdef void linear_tiles(self, Step *step, int worker, int64_t first, int64_t last, int64_t m, float *out,
                           int64_t out_stride, int64_t *unpack_ns) noexcept nogil
    cdef Routes routes
    cdef _allocate_routes(self)
