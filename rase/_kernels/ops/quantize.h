/* Activations to two int8 halves, once per vector (rule R2): x ~ d * (254 * high + low), d = amax / 32384.
 *
 * v = round(x * (32384 / amax)), nearest even, |v| <= 32384 = 254 * 127 + 126: one more would round to 128 * 254; high = round(v / 254), low = v - 254 * high, so
 * both lie in [-127, 127]: |sum of 32| <= 4064, |sum of 16| <= 2032. A block of zeros has d = 0; one that holds NaN or infinity
 * gets d = NaN, which reaches the logits. */
#ifndef RASE_OPS_QUANTIZE_H
#define RASE_OPS_QUANTIZE_H

static inline float quantize_block(const float *x, int n, int8_t *high, int8_t *low) {
    v16 highest = v16_zero(), poison = v16_zero();
    for (int i = 0; i < n; i += 16) {
        v16 v = v16_load(x + i);
        highest = v16_max(v16_abs(v), highest);  /* a NaN is dropped here ... */
        poison = v16_fma(v, v16_zero(), poison); /* ... and kept here: 0 * NaN and 0 * infinity are NaN */
    }
    float amax = v16_maxall(highest), nan = v16_sum(poison);
    if (!(nan == 0.0f) || amax < 1e-33f) { /* below 1e-33 the quotient 32384 / amax may overflow: such a block is zero */
        memset(high, 0, (size_t)n);
        memset(low, 0, (size_t)n);
        return nan == 0.0f ? 0.0f : nan;
    }
    const v16 magic = v16_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer, nearest even */
    v16 factor = v16_set1(32384.0f / amax);
    for (int i = 0; i < n; i += 16) {
        v16 v = v16_sub(v16_add(v16_mul(v16_load(x + i), factor), magic), magic);
        v16 h = v16_sub(v16_add(v16_mul(v, v16_set1(1.0f / RASE_HALF)), magic), magic);
        v16_to_i8(high + i, h);
        v16_to_i8(low + i, v16_sub(v, v16_mul(h, v16_set1(RASE_HALF)))); /* exact: integers below 2^24 */
    }
    return amax / 32384.0f;
}

static inline int32_t sum_bytes(const int8_t *q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += q[i];
    return sum;
}

static void quantize_32(const float *x, int64_t cols, int8_t *q, float *d, int32_t *sums, float *dsums) {
    int64_t blocks = cols / 32;
    for (int64_t b = 0; b < blocks; b++, x += 32, q += 32) {
        d[b] = quantize_block(x, 32, q, q + cols);
        sums[b] = sum_bytes(q, 32);
        sums[blocks + b] = sum_bytes(q + cols, 32);
        dsums[b] = d[b] * (float)(RASE_HALF * sums[b] + sums[blocks + b]); /* the integer is below 2^21: exact as a float */
    }
}

static void quantize_256(const float *x, int64_t cols, int8_t *q, float *d, int32_t *sums) {
    int64_t groups = cols / 16;
    for (int64_t b = 0; b < cols / 256; b++, x += 256, q += 256, sums += 16) {
        d[b] = quantize_block(x, 256, q, q + cols);
        for (int g = 0; g < 16; g++) {
            sums[g] = sum_bytes(q + 16 * g, 16);
            sums[groups + g] = sum_bytes(q + cols + 16 * g, 16);
        }
    }
}

#endif
