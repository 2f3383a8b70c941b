"""Cuts the attention of one batch into units of about equal work, some for each worker.

A unit is a block of query tokens, some KV heads and a run of chunks (design rule R8). Where blocks and heads alone give
enough units, each computes all chunks of its tokens. Where they do not, as for one token at a long context, the chunks
of a head are shared out: units leave the part of each chunk in memory, and whoever finishes last merges them,
ascending. The arithmetic is the same, so the bits depend on none of this.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc

from rase._kernels.kernels cimport RASE_CHUNK

cdef enum:
    SHARES = 8              # units of an average batch for each worker: a slow worker leaves the rest to others


cdef int schedule_attention(Schedule *s, const Run *runs, int64_t n_runs, int workers, float *parts,
                            int64_t parts_floats) except -1 nogil:
    """Fill ``s.units`` for the runs of a batch. Late positions see more: they come first."""
    cdef int64_t i, first, begin, end, total = 0, quota, used = 0
    for i in range(n_runs):
        first = 0
        while first < runs[i].count:
            begin, end = _chunks(s, &runs[i], first)
            total += (end - begin) * s.kv_heads
            first += s.tokens
    quota = max(1, total // (SHARES * workers)) if workers > 1 else total
    s.n_units = 0
    for i in range(n_runs - 1, -1, -1):
        first = (runs[i].count - 1) // s.tokens * s.tokens
        while first >= 0:
            used += _block(s, runs, i, first, quota, parts + used, parts_floats - used)
            first -= s.tokens
    return 0


cdef int64_t _block(Schedule *s, const Run *runs, int64_t i, int64_t first, int64_t quota, float *parts,
                    int64_t parts_floats) except -1 nogil:
    """Add the units of the block of tokens from ``first`` on: at most ``quota`` chunks each, counted over its heads.
    Returns the floats of ``parts`` that they need."""
    cdef int64_t begin, end, head = 0, span, chunks, heads, spans, need
    cdef AttendUnit unit
    begin, end = _chunks(s, &runs[i], first)
    unit.run, unit.first, unit.count = i, first, min(s.tokens, runs[i].count - first)
    unit.begin, unit.end, unit.parts = begin, end, NULL
    chunks = end - begin
    heads = min(s.kv_heads, max(1, quota // chunks))
    spans = (chunks + quota - 1) // quota
    need = chunks * unit.count * s.group * s.part if spans > 1 else 0
    if need * s.kv_heads > parts_floats:
        spans, need = 1, 0
    if s.n_units + s.kv_heads * spans > s.room:
        _grow(s, 2 * (s.n_units + s.kv_heads * spans))
    unit.spans = <int>spans
    while head < s.kv_heads:
        unit.head, unit.heads, unit.missing = head, min(heads, s.kv_heads - head), s.counters + s.n_units
        unit.missing[0] = unit.spans
        if spans > 1:
            unit.parts = parts + head * need
        for span in range(spans):
            unit.first_chunk = begin + chunks * span // spans
            unit.last_chunk = begin + chunks * (span + 1) // spans
            s.units[s.n_units] = unit
            s.n_units += 1
        head += heads
    return need * s.kv_heads


cdef inline (int64_t, int64_t) _chunks(Schedule *s, const Run *run, int64_t first) noexcept nogil:
    """The first chunk that some of a block's tokens see, and the one after the last."""
    cdef int64_t position = run.position + first, last = run.position + min(run.count, first + s.tokens) - 1
    if s.bidirectional:
        last = run.position + run.count - 1
    cdef int64_t oldest = position - s.window + 1 if s.window and position >= s.window else 0
    return oldest // RASE_CHUNK, last // RASE_CHUNK + 1


cdef int _grow(Schedule *s, int64_t room) except -1 nogil:
    """Units already made keep their contents; their counters move with the array."""
    cdef int i
    cdef int *before = s.counters
    cdef AttendUnit *units = <AttendUnit *>realloc(s.units, room * sizeof(AttendUnit))
    if units != NULL:
        s.units = units
    cdef int *counters = <int *>realloc(s.counters, room * sizeof(int))
    if counters == NULL or units == NULL:
        with gil:
            raise MemoryError
    for i in range(s.n_units):
        s.units[i].missing = counters + (s.units[i].missing - before)
    s.counters, s.room = counters, <int>room
    return 0
