/* Activations to int8, once per vector (rule R2): d = amax / 127, q = round(x * (127 / amax)), nearest even.
 *
 * |q| <= 127 by construction, so |sum of 32| <= 4064 and |sum of 16| <= 2032. A block of zeros has d = 0; one that holds
 * NaN or infinity gets d = NaN, which reaches the logits. */
#ifndef RASE_OPS_QUANTIZE_H
#define RASE_OPS_QUANTIZE_H

static inline float quantize_block(const float *x, int n, int8_t *q) {
    v16 high = v16_zero(), poison = v16_zero();
    for (int i = 0; i < n; i += 16) {
        v16 v = v16_load(x + i);
        high = v16_max(v16_abs(v), high);        /* a NaN is dropped here ... */
        poison = v16_fma(v, v16_zero(), poison); /* ... and kept here: 0 * NaN and 0 * infinity are NaN */
    }
    float amax = v16_maxall(high), nan = v16_sum(poison);
    if (!(nan == 0.0f) || amax < 1e-36f) { /* below 1e-36 the quotient 127 / amax may overflow: such a block is zero */
        memset(q, 0, (size_t)n);
        return nan == 0.0f ? 0.0f : nan;
    }
    v16 factor = v16_set1(127.0f / amax);
    for (int i = 0; i < n; i += 16) v16_to_i8(q + i, v16_mul(v16_load(x + i), factor));
    return amax / 127.0f;
}

static inline int32_t sum_bytes(const int8_t *q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += q[i];
    return sum;
}

static void quantize_32(const float *x, int64_t cols, int8_t *q, float *d, int32_t *sums, float *dsums) {
    for (int64_t b = 0; b < cols / 32; b++, x += 32, q += 32) {
        d[b] = quantize_block(x, 32, q);
        sums[b] = sum_bytes(q, 32);
        dsums[b] = d[b] * (float)sums[b];
    }
}

static void quantize_256(const float *x, int64_t cols, int8_t *q, float *d, int32_t *sums) {
    for (int64_t b = 0; b < cols / 256; b++, x += 256, q += 256, sums += 16) {
        d[b] = quantize_block(x, 256, q);
        for (int g = 0; g < 16; g++) sums[g] = sum_bytes(q + 16 * g, 16);
    }
}

#endif
