/* How K and V rows lie in a page, and how a kernel reads them: `kv` is a constant in every caller.
 *
 * A page holds 32 positions. What one KV head stores of K, or of V, is one run of bytes in it:
 * F16: (32, head_stride) float16.
 * Q8_0: (32, blocks) float16 scales, then (32, head_stride) int8 codes in [-127, 127]. A block is 32 elements of a row (the last may be
 * half): scale = amax / 127, code = round(x * (127 / amax)), nearest even, as in GGML's Q8_0. An element is code * scale, which float32
 * holds exactly. A block below 1e-33 counts as zero (127 / amax might overflow); one that holds NaN or infinity becomes NaN.
 * F32 is no format of pages but of scratch: rows that a kernel has converted, (positions, head_stride) float32. */
#ifndef RASE_OPS_KV_H
#define RASE_OPS_KV_H

enum { KV_F32 = RASE_KV_FORMATS, KV_BLOCK = 32 };

static inline int64_t kv_blocks(int64_t stride) { return (stride + KV_BLOCK - 1) / KV_BLOCK; }
static inline int64_t kv_codes_at(int64_t stride) { return 2 * RASE_PAGE_TOKENS * kv_blocks(stride); } /* bytes into a run */

/* The scales of a run, which is Q8_0: for kv_load. Floats: kv_scale_floats. */
static inline int64_t kv_scale_floats(int64_t stride) { return RASE_PAGE_TOKENS * kv_blocks(stride); }
static inline __attribute__((always_inline)) void kv_scales(const int kv, const uint8_t *run, int64_t stride, float *scales) {
    if (kv != RASE_KV_Q8_0) return;
    for (int64_t n = 0; n < kv_scale_floats(stride); n += 16) v16_store(scales + n, v16_from_f16((const uint16_t *)run + n));
}

/* Elements [i, i + 16) of row j. */
static inline __attribute__((always_inline)) v16 kv_load(const int kv, const uint8_t *rows, const float *scales, int64_t j, int64_t i,
                                                         int64_t stride) {
    if (kv == KV_F32) return v16_load((const float *)rows + j * stride + i);
    if (kv == RASE_KV_Q8_0) {
        const int8_t *codes = (const int8_t *)rows + kv_codes_at(stride);
        return v16_mul(v16_from_i8(codes + j * stride + i), v16_set1(scales[j * kv_blocks(stride) + i / KV_BLOCK]));
    }
    return v16_from_f16((const uint16_t *)rows + j * stride + i);
}

/* Pages lie far apart, where no hardware prefetcher follows: whoever reads one asks for the next, in the order of its lines, so
 * that the hardware runs ahead, and into L2, which has more requests on their way than L1. `n` counts vectors of 16 elements in the order of reading. */
static inline __attribute__((always_inline)) void kv_prefetch(const int kv, const uint8_t *run, int64_t n) {
    if (kv == RASE_KV_F16) __builtin_prefetch(run + 32 * n, 0, 2);
    if (kv == RASE_KV_Q8_0) __builtin_prefetch(run + 17 * n, 0, 2); /* 32 codes and a scale are 34 bytes */
}

static size_t kv_f16_bytes(int64_t stride) { return sizeof(uint16_t) * (size_t)(RASE_PAGE_TOKENS * stride); }

static void kv_f16_store(const float *x, int64_t n, int64_t stride, uint8_t *run, int64_t slot) {
    store_f16(x, n, stride, (uint16_t *)run + slot * stride);
}

static size_t kv_q8_0_bytes(int64_t stride) { return (size_t)(kv_codes_at(stride) + RASE_PAGE_TOKENS * stride); }

static void kv_q8_0_store(const float *x, int64_t n, int64_t stride, uint8_t *run, int64_t slot) {
    uint16_t *scales = (uint16_t *)run + slot * kv_blocks(stride);
    int8_t *codes = (int8_t *)run + kv_codes_at(stride) + slot * stride;
    for (int64_t i = 0; i < stride; i += KV_BLOCK) {
        const int64_t left = stride - i < KV_BLOCK ? 16 : KV_BLOCK;
        v16 values[2], highest = v16_zero(), poison = v16_zero();
        for (int64_t e = 0; e < left; e += 16) {
            v16 v = i + e < n ? load_lanes(x + i + e, lanes_at(i + e, n)) : v16_zero();
            values[e / 16] = v;
            highest = v16_max(v16_abs(v), highest);
            poison = v16_fma(v, v16_zero(), poison); /* 0 * NaN and 0 * infinity are NaN */
        }
        const float amax = v16_maxall(highest), nan = v16_sum(poison);
        const int zero = nan != 0.0f || amax < 1e-33f;
        const v16 factor = v16_set1(zero ? 0.0f : 127.0f / amax);
        uint16_t half[16];
        v16_to_f16(half, v16_set1(zero ? 0.0f : amax / 127.0f));
        scales[i / KV_BLOCK] = nan != 0.0f ? 0x7e00 : half[0];
        for (int64_t e = 0; e < left; e += 16) v16_to_i8(codes + i + e, nan != 0.0f ? v16_zero() : v16_mul(values[e / 16], factor));
    }
}

#endif
