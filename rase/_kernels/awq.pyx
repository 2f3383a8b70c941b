"""AWQ weights in the GEMM layout of their files, turned into rows of the packed kernels' W4A16 format.

Files hold columns: words of eight 4-bit codes, whose nibbles from the low one up belong to the outputs 0, 2, 4, 6,
1, 3, 5, 7 of their eight (AutoAWQ, GEMM version; arXiv 2306.00978).
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

cdef enum:
    GROUP = 128   # depths that share a scale and a zero point
    BLOCK = 68    # bytes of them in a row: float16 scale, float16 zero point, nibbles ascending
    RUN = 16      # words of a file row at once: one cache line

cdef int[8] _outputs = [0, 2, 4, 6, 1, 3, 5, 7]
cdef uint16_t[16] _halves = [0, 0x3C00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700,
                             0x4800, 0x4880, 0x4900, 0x4980, 0x4A00, 0x4A80, 0x4B00, 0x4B80]


def rows(const uint32_t[:, ::1] weights, const uint32_t[:, ::1] zeros, const uint16_t[:, ::1] scales,
         uint8_t[:, ::1] out):
    """Write the rows of ``weights``, (in, out / 8), with ``zeros``, (in / 128, out / 8), and float16 ``scales``,
    (in / 128, out), to ``out``, (out, in / 128 * 68). Holds no GIL. ``ValueError`` for shapes that disagree.
    """
    cdef int64_t words = weights.shape[1], groups = zeros.shape[0], g, run
    if (weights.shape[0] != groups * GROUP or zeros.shape[1] != words or scales.shape[0] != groups
            or scales.shape[1] != 8 * words or out.shape[0] != 8 * words or out.shape[1] != groups * BLOCK):
        raise ValueError("shapes of AWQ weights, zero points, scales and rows disagree")
    with nogil:
        for run in range((words + RUN - 1) // RUN):
            for g in range(groups):
                _group(weights, zeros, scales, out, g, run * RUN, min((run + 1) * RUN, words))


cdef void _group(const uint32_t[:, ::1] weights, const uint32_t[:, ::1] zeros, const uint16_t[:, ::1] scales,
                 uint8_t[:, ::1] out, int64_t g, int64_t first, int64_t last) noexcept nogil:
    cdef int64_t at = g * BLOCK, k, c, o
    cdef uint16_t zero
    cdef uint32_t low, high
    cdef int i
    for c in range(first, last):
        for i in range(8):
            o = 8 * c + _outputs[i]
            zero = _halves[zeros[g, c] >> 4 * i & 15]
            out[o, at] = <uint8_t>(scales[g, o] & 255)
            out[o, at + 1] = <uint8_t>(scales[g, o] >> 8)
            out[o, at + 2] = <uint8_t>(zero & 255)
            out[o, at + 3] = <uint8_t>(zero >> 8)
    for k in range(GROUP // 2):
        for c in range(first, last):
            low, high = weights[g * GROUP + 2 * k, c], weights[g * GROUP + 2 * k + 1, c]
            for i in range(8):
                out[8 * c + _outputs[i], at + 4 + k] = <uint8_t>((low >> 4 * i & 15) | (high >> 4 * i & 15) << 4)
