/* Activations to two int8 halves, once per vector (rule R2): x ~ d * (254 * high + low), d = amax / 32384.
 *
 * v = round(x * (32384 / amax)), nearest even, |v| <= 32384 = 254 * 127 + 126 (one more would make high 128);
 * high = round(v / 254), low = v - 254 * high, so both lie in [-127, 127]: |sum of 32| <= 4064, |sum of 16| <= 2032. All of
 * these are integers below 2^24, so that float arithmetic on them is exact in any order. A block below 1e-33 counts as zero
 * (32384 / amax might overflow). A row that holds NaN or infinity gets d = NaN everywhere, which reaches the logits. */
#ifndef RASE_OPS_QUANTIZE_H
#define RASE_OPS_QUANTIZE_H

static inline v16 round_v16(v16 x) { /* |x| < 2^22: adding 1.5 * 2^23 rounds to an integer, nearest even */
    const v16 magic = v16_set1(12582912.0f);
    return v16_sub(v16_add(x, magic), magic);
}

/* Quantize 16 values; the halves go to high and low, and as floats to *h and *l. Returns the whole, 254 * h + l. */
static inline v16 quantize_16(v16 x, v16 factor, int8_t *high, int8_t *low, int16_t *wide, v16 *h, v16 *l) {
    v16 v = round_v16(v16_mul(x, factor));
    if (wide) v16_to_wide(wide, v);
    *h = round_v16(v16_mul(v, v16_set1(1.0f / RASE_HALF)));
    *l = v16_sub(v, v16_mul(*h, v16_set1(RASE_HALF)));
    v16_to_i8(high, *h);
    v16_to_i8(low, *l);
    return v;
}

static inline float block_factor(float amax, float *d) {
    *d = amax < 1e-33f ? 0.0f : amax / 32384.0f;
    return amax < 1e-33f ? 0.0f : 32384.0f / amax;
}

static inline void poison_row(v16 poison, int64_t blocks, float *d) { /* 0 * NaN and 0 * infinity are NaN */
    float nan = v16_sum(poison);
    if (nan == 0.0f) return;
    for (int64_t b = 0; b < blocks; b++) d[b] = nan;
}

static void quantize_32(const float *x, int64_t cols, int8_t *q, int16_t *wide, float *d, int32_t *sums, float *dsums) {
    int64_t blocks = cols / 32;
    v16 poison = v16_zero();
    for (int64_t b = 0; b < blocks; b++, q += 32) {
        v16 x0 = v16_load(x + 32 * b), x1 = v16_load(x + 32 * b + 16), h0, h1, l0, l1;
        poison = v16_fma(x1, v16_zero(), v16_fma(x0, v16_zero(), poison));
        v16 factor = v16_set1(block_factor(v16_maxall(v16_max(v16_abs(x0), v16_abs(x1))), d + b));
        quantize_16(x0, factor, q, q + cols, wide ? wide + RASE_WIDE_COLS * 4 * b : NULL, &h0, &l0);
        quantize_16(x1, factor, q + 16, q + cols + 16, wide ? wide + RASE_WIDE_COLS * 4 * b + 16 : NULL, &h1, &l1);
        float high = v16_sum(v16_add(h0, h1)), low = v16_sum(v16_add(l0, l1));
        sums[b] = (int32_t)high;
        sums[blocks + b] = (int32_t)low;
        dsums[b] = d[b] * (RASE_HALF * high + low);
    }
    poison_row(poison, blocks, d);
    poison_row(poison, blocks, dsums);
}

static void quantize_256(const float *x, int64_t cols, int8_t *q, int16_t *wide, float *d, int16_t *sides) {
    int64_t blocks = cols / 256;
    v16 poison = v16_zero();
    for (int64_t b = 0; b < blocks; b++, x += 256, q += 256, sides += RASE_SIDES) {
        v16 highest = v16_zero(), whole[16], h, l;
        for (int g = 0; g < 16; g++) {
            v16 v = v16_load(x + 16 * g);
            poison = v16_fma(v, v16_zero(), poison);
            highest = v16_max(v16_abs(v), highest);
        }
        v16 factor = v16_set1(block_factor(v16_maxall(highest), d + b));
        for (int g = 0; g < 16; g++)
            whole[g] = quantize_16(v16_load(x + 16 * g), factor, q + 16 * g, q + cols + 16 * g,
                                   wide ? wide + (8 * b + g / 2) * 4 * RASE_WIDE_COLS + g % 2 * 16 : NULL, &h, &l);
        float all[16]; /* sums below 2^24 */
        int32_t sums[24];
        v16_store(all, v16_sum16(whole));
        for (int g = 0; g < 16; g++) sums[g] = (int32_t)all[g];
        for (int g = 0; g < 8; g++) sums[16 + g] = sums[2 * g] + sums[2 * g + 1];
        for (int g = 0; g < 24; g++) sides[2 * g] = (int16_t)(sums[g] & 127), sides[2 * g + 1] = (int16_t)(sums[g] >> 7);
    }
    poison_row(poison, blocks, d);
}

#endif
