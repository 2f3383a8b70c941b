/* TQ1_0: weight = d * (code - 1), code 0..2, five to a byte that stands for the fraction byte / 256 in base 3.
 * Packed block: R d; 13 vectors, digit n of vector w for depths 4 (5w + n) to 4 (5w + n) + 3; the last one has four digits.
 * Accumulator: int32 per block and half, |sum| <= 256 * 2 * 127 + 256 * 127 < 2^17; then as block256.h: high first, one FMA
 * each, blocks ascending. */
#ifndef RASE_QUANTS_TQ1_0_H
#define RASE_QUANTS_TQ1_0_H

#include "block256.h"

enum { TQ1_0_VECTORS = 13, TQ1_0_BYTES = 54 };

static size_t tq1_0_group_bytes(int64_t cols) { return round_64((size_t)(cols / 256) * TQ1_0_BYTES * RASE_R); }

/* Digits of vector w: 5, in the last one 4. */
TEMPLATE int tq1_0_digits(int w) { return w < TQ1_0_VECTORS - 1 ? 5 : 4; }
TEMPLATE rb tq1_0_next(rb x) { return rb_add(rb_add(x, x), x); } /* without the first digit */

TEMPLATE void tq1_0_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {
    for (int64_t b = k0 / 256; b < k1 / 256; b++) {
        const uint8_t *block = group + (size_t)b * TQ1_0_BYTES * RASE_R;
        rf d = rf_from_f16((const uint16_t *)block);
        for (int w = 0; w < TQ1_0_VECTORS; w++) {
            rb x = rb_load(block + 2 * RASE_R + w * VECTOR);
            for (int n = 0; n < tq1_0_digits(w); n++, x = tq1_0_next(x)) {
                rb trits = rb_trits(x);
                UNROLL(i, 4) put(to, rf_mul(d, rf_from_ri(ri_sub(ri_byte_u8(trits, i), ri_set1(1)))), 4 * (5 * w + n) + i);
            }
        }
    }
}

TEMPLATE void tq1_0_step(rb *x, const int8_t *q, int64_t cols, const int n, rp *dot) {
    rb trits = rb_trits(*x);
    UNROLL(t, 2 * n) dot[t] = rp_dot_u8(dot[t], trits, q + t * cols);
    *x = tq1_0_next(*x);
}

TEMPLATE void tq1_0_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n, float *out,
                         int64_t out_stride) {
    const int64_t blocks = cols / 256;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    const int16_t *sides = act->sides + row * blocks * RASE_SIDES;
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += TQ1_0_BYTES * RASE_R, sides += RASE_SIDES) {
        read_ahead(group, (TQ1_0_BYTES * RASE_R + 63) / 64);
        rf d = rf_from_f16((const uint16_t *)group);
        ri start[2 * DOT_TILE];
        rp dot[2 * DOT_TILE]; /* 64 calls with codes of at most 2: RP_CALLS(2) is never less */
            UNROLL(t, 2 * n) { /* the offset of both halves in the start of the low one, which is added to 254 times the high one */
            int32_t all = 0;
            for (int g = 16; t % 2 && g < 24; g++) all += side_sum(sides + t / 2 * blocks * RASE_SIDES, 2 * (g - 16), 32);
            start[t] = ri_set1(-all);
            dot[t] = rp_begin(start[t]);
        }
        for (int w = 0; w < TQ1_0_VECTORS - 1; w++, q += 20) {
            rb x = rb_load(group + 2 * RASE_R + w * VECTOR);
            UNROLL(k, 5) tq1_0_step(&x, q + 4 * k, cols, n, dot);
        }
        rb x = rb_load(group + 2 * RASE_R + (TQ1_0_VECTORS - 1) * VECTOR);
        UNROLL(k, 4) tq1_0_step(&x, q + 4 * k, cols, n, dot);
        q += 16;
        UNROLL(t, n) {
            ri high = rp_end(dot[2 * t], start[2 * t]), low = rp_end(dot[2 * t + 1], start[2 * t + 1]);
            acc[t] = join_exact(acc[t], high, low, d, da[t * blocks + b]);
        }
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

/* File block: codes[48] of five digits, codes[4] of four, d. Digit n of byte m is depth 32n + m for m < 32, then
 * 160 + 16n + m - 32, then 240 + 4n + m - 48. */
static void tq1_0_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {
    static const int power[5] = {1, 3, 9, 27, 81};
    memset(group, 0, tq1_0_group_bytes(cols));
    for (int64_t b = 0; b < cols / 256; b++, src += TQ1_0_BYTES, group += TQ1_0_BYTES * RASE_R) {
        pack_halves(src + 52, row_bytes, rows, 1, group);
        for (int r = 0; r < rows; r++) {
            const uint8_t *codes = src + (size_t)r * row_bytes;
            uint8_t digit[256 + 4] = {0};
            for (int m = 0; m < 52; m++) {
                int start = m < 32 ? m : m < 48 ? 128 + m : 192 + m, step = m < 32 ? 32 : m < 48 ? 16 : 4;
                for (int n = 0; n < (m < 48 ? 5 : 4); n++)
                    digit[start + n * step] = (uint8_t)((uint8_t)(codes[m] * power[n]) * 3 >> 8);
            }
            for (int w = 0; w < TQ1_0_VECTORS; w++) {
                for (int i = 0; i < 4; i++) {
                    int number = 0;
                    for (int n = 0; n < 5; n++) number = 3 * number + digit[4 * (5 * w + n) + i];
                    group[2 * RASE_R + w * VECTOR + 4 * r + i] = (uint8_t)((number * 256 + 242) / 243);
                }
            }
        }
    }
}

#ifdef RASE_WIDE_GROUPS
static void tq1_0_wide(const uint8_t *block, int count, wide_panel *panel) {
    int16_t *to = panel->weights;
    (void)count;
    rf_store(panel->d, rf_from_f16((const uint16_t *)block));
    for (int w = 0; w < TQ1_0_VECTORS; w++) {
        rb x = rb_load(block + 2 * RASE_R + w * VECTOR);
        for (int k = 0; k < (w + 1 < TQ1_0_VECTORS ? 5 : 4); k++, x = tq1_0_next(x)) {
            rb trits = rb_trits(x);
            rh_store(to, rh_sub(rh_even_u8(trits), rh_set1(1)));
            rh_store(to + 2 * RASE_R, rh_sub(rh_odd_u8(trits), rh_set1(1)));
            to += 4 * RASE_R;
        }
    }
}
#endif
#ifdef RASE_FOUR_ROWS
static void tq1_0_four(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) {
    const int64_t blocks = cols / 256;
    const float *da = act->d + row * blocks;
    rf acc[4];
    UNROLL(t, 4) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += TQ1_0_BYTES * RASE_R) {
        rf d = rf_from_f16((const uint16_t *)group);
        rb x = rb_lanes(0);
        ri sum[8];
        UNROLL(t, 8) sum[t] = ri_zero();
        read_ahead(group, (TQ1_0_BYTES * RASE_R + 63) / 64);
        for (int k = 0; k < 64; k++, x = tq1_0_next(x)) { /* five vectors of a lane's bytes, the last time four */
            if (k % 5 == 0) x = rb_load(group + 2 * RASE_R + k / 5 * VECTOR);
            rb trits = rb_trits(x);
            four_dots(sum, rh_sub(rh_even_u8(trits), rh_set1(1)), rh_sub(rh_odd_u8(trits), rh_set1(1)),
                      wide_at(act, cols, row, 256 * b + 4 * k) + 4 * k % RASE_WIDE_COLS);
        }
        UNROLL(t, 4) acc[t] = rf_fma(rf_from_ri(ri_add(sum[t], sum[4 + t])), rf_mul(d, rf_set1(da[t * blocks + b])), acc[t]);
    }
    UNROLL(t, 4) rf_store(sums + t * RASE_R, acc[t]);
}
#endif

QUANTISED_FORMAT(tq1_0, 34, 256, RASE_ACT_Q16_256, 256, 0, TQ1_0_BYTES * RASE_R)

#endif
