/* Q8_0: weight = d * code, code -128..127, blocks of 32. Packed block: R scales; 8 vectors of codes.
 * Accumulator: int32 per block and half, |sum| <= 32 * 128 * 127 < 2^20 (as unsigned codes 32 * 255 * 127 < 2^21, start
 * -128 * 4064), then acc = fma(254 * high + low, d * da, acc), the integer exact (below 2^28); float32, blocks ascending. */
#ifndef RASE_QUANTS_Q8_0_H
#define RASE_QUANTS_Q8_0_H

#include "common.h"

static size_t q8_0_group_bytes(int64_t cols) { return round_64((size_t)(cols / 32) * 34 * RASE_R); }

static void q8_0_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {
    for (int64_t b = 0; b < cols / 32; b++, src += 34, group += 34 * RASE_R) {
        pack_halves(src, row_bytes, rows, 1, group);
        pack_words(src + 2, row_bytes, rows, 8, group + 2 * RASE_R);
    }
    memset(group, 0, -(uintptr_t)group & 63);
}

TEMPLATE void q8_0_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {
    for (int64_t b = k0 / 32; b < k1 / 32; b++) {
        const uint8_t *block = group + (size_t)b * 34 * RASE_R;
        rf d = rf_from_f16((const uint16_t *)block);
        read_ahead(block, (34 * RASE_R + 63) / 64);
        UNROLL(v, 8) {
            rb w = rb_load(block + 2 * RASE_R + v * VECTOR);
            UNROLL(i, 4) put(to, rf_mul(d, rf_from_ri(ri_byte_i8(w, i))), 4 * v + i);
        }
    }
}

TEMPLATE void q8_0_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n, float *out,
                        int64_t out_stride) {
    const int64_t blocks = cols / 32;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    const int32_t *sums = act->sums + 2 * row * blocks;
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += 34 * RASE_R, q += 32) {
        read_ahead(group, (34 * RASE_R + 63) / 64);
        rf d = rf_from_f16((const uint16_t *)group);
        rq sum[2 * DOT_TILE];
        UNROLL(t, 2 * n) sum[t] = rq_begin(sums[t * blocks + b]);
        UNROLL(v, 8) {
            rb w = rb_load(group + 2 * RASE_R + v * VECTOR);
            UNROLL(t, 2 * n) sum[t] = rq_dot_s8(sum[t], w, q + t * cols + 4 * v);
        }
        UNROLL(t, n) acc[t] = join_exact(acc[t], rq_end(sum[2 * t]), rq_end(sum[2 * t + 1]), d, da[t * blocks + b]);
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

#ifdef RASE_WIDE_GROUPS
static void q8_0_wide(const uint8_t *group, int64_t first, int count, wide_panel *panel) {
    const uint8_t *block = group + (size_t)first * 34 * RASE_R;
    int16_t *to = panel->weights;
    for (int b = 0; b < count; b++, block += 34 * RASE_R) {
        rf_store(panel->d + b * RASE_R, rf_from_f16((const uint16_t *)block));
        UNROLL(v, 8) {
            rb w = rb_load(block + 2 * RASE_R + v * VECTOR);
            rh_store(to, rh_even_i8(w));
            rh_store(to + 2 * RASE_R, rh_odd_i8(w));
            to += 4 * RASE_R;
        }
    }
}
#endif
#ifdef RASE_FOUR_ROWS
TEMPLATE void q8_0_rows(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums, const int n) {
    const int64_t blocks = cols / 32;
    const float *da = act->d + row * blocks;
    rf acc[8];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += 34 * RASE_R) {
        const int16_t *fours[2] = {wide_at(act, cols, row, 32 * b), wide_at(act, cols, row + 4, 32 * b)};
        KEEP_POINTERS(fours)
        read_ahead_of_rows(group, (34 * RASE_R + 63) / 64);
        rf d = rf_from_f16((const uint16_t *)group);
        ri sum[16];
        UNROLL(t, 2 * n) sum[t] = ri_zero();
        UNROLL(v, 8) {
            rb w = rb_load(group + 2 * RASE_R + v * VECTOR);
            rows_dots(sum, rh_even_i8(w), rh_odd_i8(w), fours, 4 * v, n, 32);
        }
        UNROLL(t, n) acc[t] = rf_fma(rf_from_ri(rows_sum(sum, t, n, 32)), rf_mul(d, rf_set1(da[t * blocks + b])), acc[t]);
    }
    UNROLL(t, n) rf_store(sums + t * RASE_R, acc[t]);
}
ROWS_OF(q8_0, q8_0_rows(group, cols, act, row, sums, 4), q8_0_rows(group, cols, act, row, sums, 8), )
#endif

QUANTISED_FORMAT(q8_0, 8, 32, RASE_ACT_Q16_32, 32, 0, 34 * RASE_R)

#endif
