# The records that program.pyx walks: a step, a buffer of quantized activations, a run of tokens.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from rase._kernels.kernels cimport rase_format

cdef enum Kind:
    EMBED, NORM, QUANTIZE, LINEAR, BIAS, ROTATE, SILU, SILU_MUL, MUL, ADD, STORE, ATTEND, GATHER, LOGITS

cdef enum Share:
    ROW_LOCAL, OUTPUT_SPLIT, HEAD_SPLIT

cdef enum:                  # indices of Walker.spent
    UNPACK_NS, LINEAR_NS, ATTEND_NS, COUNTERS

ctypedef struct Step:
    Kind kind
    Share share
    bint outputs            # rows are those that want logits, else the batch's tokens
    bint integer            # LINEAR, QUANTIZE: prompt rows too take the format's own path
    float *x                # (rows, x_stride)
    float *y
    float *out
    int64_t x_stride, y_stride, out_stride
    int64_t cols, rows      # depth and outputs of a matrix; cols is the width of row-local steps
    int64_t group           # elements normalised together; query heads per KV head
    int64_t head_dim, n_dims, kv_heads, window
    int64_t k_offset, v_offset  # bytes into a page
    int act                 # index of a quantized activation buffer, -1 for float32
    int rope
    bint neighbour
    float scale
    const rase_format *format
    const uint8_t *packed
    size_t group_bytes

ctypedef struct Act:
    int kind
    int64_t cols
    int8_t *q
    float *d
    float *dsums
    int32_t *sums

ctypedef struct Phase:      # steps [first, last) of one share
    int first, last
    Share share
    bint outputs
    int64_t groups          # packed groups of all its matrices

ctypedef struct Run:        # contiguous tokens of one sequence; block = attention blocks of the runs before
    int64_t first, count, position, table, block
