"""What this machine can do at most, measured with the engine's own vectors and threads: memory bandwidth and FMA peak.

Speeds are reported as a share of these numbers. Each is the best of several passes, so that company on the machine
lowers it as little as possible.
"""

from cython.parallel cimport prange
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from rase._kernels.kernels cimport Variant, rase_kernels, rase_tiles

import mmap

cdef extern from "tickets.h" nogil:
    int64_t rase_nanoseconds()

cdef enum:
    STRIDE = 4096           # what a worker reads is a whole number of these
    MARK = 0x5A
    TILE_STEPS = 1 << 13    # four tiles each: a fraction of a millisecond


def read_bandwidth(Variant variant not None, int threads, int64_t nbytes=2 << 30, int passes=5):
    cdef const rase_kernels *k = variant.table
    cdef int64_t share = nbytes // threads // STRIDE * STRIDE, start, best = 0, spent
    cdef int worker, _turn, wrong = 0
    if threads < 1 or passes < 1 or share < STRIDE:
        raise ValueError("at least one thread, one pass and a page for each thread")
    memory = mmap.mmap(-1, share * threads, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without transparent huge pages
            pass
    cdef uint8_t[::1] view = memory
    cdef uint8_t *data = &view[0]
    with nogil:
        for worker in prange(threads, schedule="static", num_threads=threads):
            memset(data + worker * share, MARK, share)  # real pages, near the thread that will read them
        for _turn in range(passes):
            start = rase_nanoseconds()
            for worker in prange(threads, schedule="static", num_threads=threads):
                wrong += k.read_burst(data + worker * share, share) != MARK
            spent = rase_nanoseconds() - start
            best = spent if best == 0 or spent < best else best
    del view
    memory.close()
    if wrong:
        raise AssertionError("the bytes that were read are not those that were written")
    return share * threads / <double>best


def fma_peak(Variant variant not None, int threads, int64_t nanoseconds=20_000_000, int passes=5):
    cdef const rase_kernels *k = variant.table
    cdef int64_t steps = 1024, operations = 0, start, spent = 0, best = 0
    cdef int _worker, _turn, wrong = 0
    cdef float expected
    if threads < 1 or passes < 1:
        raise ValueError("at least one thread and one pass")
    with nogil:
        while spent < nanoseconds // 2:  # how many steps fill the time
            steps *= 2
            start = rase_nanoseconds()
            expected = k.fma_burst(steps, &operations)
            spent = rase_nanoseconds() - start
        for _turn in range(passes):
            start = rase_nanoseconds()
            for _worker in prange(threads, schedule="static", num_threads=threads):
                wrong += burst(k, steps) != expected
            spent = rase_nanoseconds() - start
            best = spent if best == 0 or spent < best else best
    if wrong or expected != 24.0 * variant.table.rows_per_group:
        raise AssertionError("the chains did not converge to 2")
    return threads * operations / <double>best


def tile_times(Variant variant not None, int threads, int passes=5):
    cdef const rase_tiles *tiles = variant.tiles
    cdef int64_t start, spent, best[2]
    cdef int _worker, _turn, wrong = 0, loads
    if threads < 1 or passes < 1:
        raise ValueError("at least one thread and one pass")
    if tiles == NULL:
        return None
    best[0] = best[1] = 0
    with nogil:
        for _turn in range(passes):
            for loads in range(2):
                start = rase_nanoseconds()
                for _worker in prange(threads, schedule="static", num_threads=threads):
                    wrong += tile_burst(tiles, loads)
                spent = rase_nanoseconds() - start
                best[loads] = spent if best[loads] == 0 or spent < best[loads] else best[loads]
    if wrong:
        raise AssertionError("the products of tiles are not those of their operands")
    return best[0] / (4.0 * TILE_STEPS), best[1] / (4.0 * TILE_STEPS)


cdef int tile_burst(const rase_tiles *tiles, int loads) noexcept nogil:
    cdef int right
    tiles.begin()
    right = tiles.burst(TILE_STEPS, loads)
    tiles.end()
    return not right


cdef float burst(const rase_kernels *k, int64_t steps) noexcept nogil:
    cdef int64_t operations
    return k.fma_burst(steps, &operations)
