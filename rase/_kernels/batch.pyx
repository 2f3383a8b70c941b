"""Accepts the batch of one token: the check of backends/check.py for every step of plain decoding.

It only says yes or no; whoever gets a no runs the full check, which says why.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t


def accepts_one(const int32_t[::1] ids not None, const int32_t[:, ::1] positions not None,
                const int32_t[::1] sequences not None, const int32_t[:, :, ::1] tables not None,
                const uint8_t[::1] roles not None, const int32_t[::1] logits_rows not None,
                int64_t vocab_size, int64_t context_length, reserved_pages, int64_t page_tokens, windows):
    cdef int64_t position, page, i, group
    if ids.shape[0] != 1 or positions.shape[0] != 1 or positions.shape[1] != 1:
        return False
    if sequences.shape[0] != 1 or roles.shape[0] != 1:
        return False
    position = positions[0, 0]
    page = position // page_tokens
    if not (0 <= ids[0] < vocab_size and 0 <= position < context_length and 0 <= sequences[0] < tables.shape[1]):
        return False
    if page >= tables.shape[2] or roles[0] > 1 or tables.shape[0] != len(windows):
        return False
    for i in range(logits_rows.shape[0]):
        if logits_rows[i] != 0:
            return False
    for group in range(tables.shape[0]):
        if not _sees_its_pages(tables[group], sequences[0], position, page, page_tokens, reserved_pages[group],
                               windows[group]):
            return False
    return True


cdef bint _sees_its_pages(const int32_t[:, ::1] tables, int64_t sequence, int64_t position, int64_t page,
                          int64_t page_tokens, int64_t reserved, int64_t window):
    cdef int64_t i, row, first = 0, places = 0, written = tables[sequence, page]
    if window > 0 and position >= window:
        first = (position - window + 1) // page_tokens
    for i in range(first, page + 1):
        if tables[sequence, i] < 0:
            return False
    for row in range(tables.shape[0]):
        for i in range(tables.shape[1]):
            if tables[row, i] >= reserved:
                return False
            places += tables[row, i] == written
    return places == 1
