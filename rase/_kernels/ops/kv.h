/* How K and V rows lie in a page, and how a kernel reads them: `kv` is a constant in every caller.
 *
 * A page holds 32 positions. What one KV head stores of K, or of V, is one run of bytes in it:
 * F16: (32, head_stride) float16.
 * F32 is no format of pages but of scratch: rows that a kernel has converted, (positions, head_stride) float32. */
#ifndef RASE_OPS_KV_H
#define RASE_OPS_KV_H

enum { KV_F32 = RASE_KV_FORMATS };

/* Elements [i, i + 16) of row j. */
static inline __attribute__((always_inline)) v16 kv_load(const int kv, const uint8_t *rows, int64_t j, int64_t i, int64_t stride) {
    if (kv == KV_F32) return v16_load((const float *)rows + j * stride + i);
    return v16_from_f16((const uint16_t *)rows + j * stride + i);
}

/* Pages lie far apart, where no hardware prefetcher follows: whoever reads one asks for the next, in the order of its lines, so
 * that the hardware runs ahead, and into L2, which has more requests on their way than L1. `n` counts vectors of 16 elements in the order of reading. */
static inline __attribute__((always_inline)) void kv_prefetch(const int kv, const uint8_t *run, int64_t n) {
    if (kv == RASE_KV_F16) __builtin_prefetch(run + 32 * n, 0, 2);
}

static size_t kv_f16_bytes(int64_t stride) { return sizeof(uint16_t) * (size_t)(RASE_PAGE_TOKENS * stride); }

static void kv_f16_store(const float *x, int64_t n, int64_t stride, uint8_t *run, int64_t slot) {
    store_f16(x, n, stride, (uint16_t *)run + slot * stride);
}

#endif
