# How the attention of one batch is cut into units; attend.pyx says by which rule.
from libc.stdint cimport int64_t

ctypedef struct Run:        # contiguous tokens of one sequence; `table` is its row of page tables
    int64_t first, count, position, table

ctypedef struct AttendUnit:  # some KV heads, for some tokens of a run, over some chunks of 256 positions
    int64_t run, first, count       # tokens [first, first + count) of the run
    int64_t head, heads
    int64_t begin, end              # chunks that the tokens see
    int64_t first_chunk, last_chunk  # those of this unit
    float *parts                    # NULL: the unit computes all chunks; else where the part of chunk `begin` goes
    int *missing                    # units of these tokens and this head that are not done
    int spans                       # units of these tokens and this head

ctypedef struct Schedule:   # the units of all layers of one shape
    int64_t kv_heads, group, window
    bint bidirectional      # every token sees its whole run
    int64_t tokens          # the most of one unit
    int64_t part            # floats of one row's part
    AttendUnit *units
    int *counters
    int n_units, room

cdef int schedule_attention(Schedule *s, const Run *runs, int64_t n_runs, int workers, float *parts,
                            int64_t parts_floats) except -1 nogil
