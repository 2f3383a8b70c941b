/* How K and V rows lie in a page, and how a kernel reads them: `kv` is a constant in every caller.
 *
 * A page holds 32 positions. What one KV head stores of K, or of V, is one run of bytes in it:
 * F16: (32, head_stride) float16.
 * Q8_0: (32, head_stride) int8 codes in [-127, 127], then (32, blocks) float32 scales, one for each 32 elements of a row (the last
 * block may be half); an element is code * scale, rounded once. scale = amax / 127, code = round(x * (127 / amax)), nearest even;
 * a block below 1e-33 counts as zero (127 / amax might overflow), a block that holds NaN or infinity becomes NaN.
 * F32 is no format of pages but of scratch: rows that a kernel has converted, (positions, head_stride) float32. */
#ifndef RASE_OPS_KV_H
#define RASE_OPS_KV_H

enum { KV_F32 = RASE_KV_FORMATS };

#if !defined(__AVX2__) /* simd/avx512.h and simd/avx2.h have their own */
static inline v16 v16_from_i8(const int8_t *p) {
    float x[16];
    for (int l = 0; l < 16; l++) x[l] = p[l];
    return v16_load(x);
}
#endif

static inline int64_t q8_0_blocks(int64_t stride) { return (stride + 31) / 32; }

/* Elements [i, i + 16) of row j. */
static inline __attribute__((always_inline)) v16 kv_load(const int kv, const uint8_t *rows, int64_t j, int64_t i, int64_t stride) {
    if (kv == KV_F32) return v16_load((const float *)rows + j * stride + i);
    if (kv == RASE_KV_Q8_0) {
        const float *scales = (const float *)(rows + RASE_PAGE_TOKENS * stride) + j * q8_0_blocks(stride);
        return v16_mul(v16_from_i8((const int8_t *)rows + j * stride + i), v16_set1(scales[i / 32]));
    }
    return v16_from_f16((const uint16_t *)rows + j * stride + i);
}

/* Pages lie far apart, where no hardware prefetcher follows: whoever reads one asks for the next, in the order of its lines, so
 * that the hardware runs ahead, and into L2, which has more requests on their way than L1. `n` counts vectors of 16 elements in the order of reading. */
static inline __attribute__((always_inline)) void kv_prefetch(const int kv, const uint8_t *run, int64_t n) {
    if (kv == RASE_KV_F16) __builtin_prefetch(run + 32 * n, 0, 2);
    if (kv == RASE_KV_Q8_0) __builtin_prefetch(run + 18 * n, 0, 2); /* 32 codes and a scale are 36 bytes */
}

static size_t kv_f16_bytes(int64_t stride) { return sizeof(uint16_t) * (size_t)(RASE_PAGE_TOKENS * stride); }

static void kv_f16_store(const float *x, int64_t n, int64_t stride, uint8_t *run, int64_t slot) {
    store_f16(x, n, stride, (uint16_t *)run + slot * stride);
}

static size_t kv_q8_0_bytes(int64_t stride) {
    return (size_t)(RASE_PAGE_TOKENS * stride) + sizeof(float) * (size_t)(RASE_PAGE_TOKENS * q8_0_blocks(stride));
}

static void kv_q8_0_store(const float *x, int64_t n, int64_t stride, uint8_t *run, int64_t slot) {
    float *scales = (float *)(run + RASE_PAGE_TOKENS * stride) + slot * q8_0_blocks(stride);
    int8_t *codes = (int8_t *)run + slot * stride;
    for (int64_t block = 0; block < stride; block += 32) {
        int64_t end = block + 32 < stride ? block + 32 : stride;
        v16 values[2], highest = v16_zero(), poison = v16_zero();
        for (int64_t i = block; i < end; i += 16) {
            v16 v = i < n ? load_lanes(x + i, lanes_at(i, n)) : v16_zero();
            values[(i - block) / 16] = v;
            highest = v16_max(v16_abs(v), highest);
            poison = v16_fma(v, v16_zero(), poison); /* 0 * NaN and 0 * infinity are NaN */
        }
        float amax = v16_maxall(highest), nan = v16_sum(poison);
        int zero = amax < 1e-33f || nan != 0.0f;
        v16 factor = v16_set1(zero ? 0.0f : 127.0f / amax);
        scales[block / 32] = nan != 0.0f ? nan : zero ? 0.0f : amax / 127.0f;
        for (int64_t i = block; i < end; i += 16)
            v16_to_i8(codes + i, nan != 0.0f ? v16_zero() : v16_mul(values[(i - block) / 16], factor));
    }
}

#endif
