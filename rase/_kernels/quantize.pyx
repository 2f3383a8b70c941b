"""Quantizers of weights: whole blocks of float32 to the bytes of a GGUF format."""

from cython.parallel cimport prange
from libc.stdint cimport int64_t, uint8_t

cdef extern from "quantizers.h" nogil:
    ctypedef struct quantizer:
        int block
        int bytes
    const quantizer *quantizer_of(int id)
    int quantize_blocks(const quantizer *q, const float *x, int64_t first, int64_t last, uint8_t *out)

cdef enum:
    SHARE = 64  # blocks that a thread takes at a time


def supports(int format_id):
    """Whether there is a quantizer for this ggml type number."""
    return quantizer_of(format_id) != NULL


def quantize(int format_id, const float[::1] values, uint8_t[::1] out, int threads=1):
    """Write the blocks of ``values`` to ``out`` and return whether all of them are finite.

    Blocks from the first that holds a NaN or an infinity on may be missing. ``ValueError``: no quantizer for
    the format, or sizes that do not fit each other. The bytes do not depend on ``threads``.
    """
    cdef const quantizer *q = quantizer_of(format_id)
    if q == NULL:
        raise ValueError(f"no quantizer for format {format_id}")
    cdef int64_t blocks = values.shape[0] // q.block, shares, i, last
    if threads < 1 or values.shape[0] != blocks * q.block or out.shape[0] != blocks * q.bytes:
        raise ValueError("sizes of values or out, or threads")
    if blocks == 0:
        return True
    cdef const float *x = &values[0]
    cdef uint8_t *to = &out[0]
    cdef int broken = 0
    shares = (blocks + SHARE - 1) // SHARE
    with nogil:
        for i in prange(shares, num_threads=threads, schedule="dynamic"):
            broken += quantize_blocks(q, x, i * SHARE, min(blocks, (i + 1) * SHARE), to)
    return broken == 0
