"""Accepts the batches of decoding: the check of backends/check.py for steps in which every sequence adds one token.

It only says yes or no; whoever gets a no runs the full check, which says why.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free


def accepts_decode(const int32_t[::1] ids not None, const int32_t[:, ::1] positions not None,
                   const int32_t[::1] sequences not None, const int32_t[:, :, ::1] tables not None,
                   const uint8_t[::1] roles not None, const int32_t[::1] logits_rows not None,
                   int64_t vocab_size, int64_t context_length, reserved_pages, int64_t page_tokens, windows):
    cdef int64_t n = ids.shape[0], i, group
    if n < 1 or positions.shape[0] != 1 or positions.shape[1] != n or sequences.shape[0] != n or roles.shape[0] != n:
        return False
    if tables.shape[0] != len(windows):
        return False
    for i in range(n):
        if not (0 <= ids[i] < vocab_size and 0 <= positions[0, i] < context_length):
            return False
        if sequences[i] < (0 if i == 0 else sequences[i - 1] + 1) or sequences[i] >= tables.shape[1]:
            return False
        if roles[i] > (1 if n == 1 else 0) or positions[0, i] // page_tokens >= tables.shape[2]:
            return False
    for i in range(logits_rows.shape[0]):
        if not 0 <= logits_rows[i] < n:
            return False
    for group in range(tables.shape[0]):
        if not _have_pages(tables[group], sequences, positions[0], page_tokens, reserved_pages[group], windows[group]):
            return False
    return True


cdef bint _have_pages(const int32_t[:, ::1] tables, const int32_t[::1] sequences, const int32_t[::1] positions,
                      int64_t page_tokens, int64_t reserved, int64_t window) except -1:
    """Whether all pages exist, those that a token sees are there, and those that are written are in one place."""
    cdef int64_t row, i, first, last
    cdef int *places = <int *>calloc(reserved + 1, sizeof(int))  # of each page
    cdef bint good = places != NULL
    if not good:
        raise MemoryError
    for row in range(tables.shape[0]):
        for i in range(tables.shape[1]):
            if tables[row, i] >= reserved:
                good = False
            elif tables[row, i] >= 0:
                places[tables[row, i]] += 1
    for i in range(sequences.shape[0]):
        if not good:
            break
        row, last = sequences[i], positions[i] // page_tokens
        first = (positions[i] - window + 1) // page_tokens if 0 < window <= positions[i] else 0
        good = places[tables[row, last]] == 1 if tables[row, last] >= 0 else False
        while good and first < last:
            good = tables[row, first] >= 0
            first += 1
    free(places)
    return good
