/* Q8_0: weight = d * code, code -128..127, blocks of 32. Packed block: R scales; 8 vectors of codes.
 * Accumulator: int32 per block and half, |sum| <= 32 * 128 * 127 < 2^20 (as unsigned codes 32 * 255 * 127 < 2^21, start
 * -128 * 4064), then acc = fma(254 * high + low, d * da, acc), the integer exact (below 2^28); float32, blocks ascending. */
#ifndef RASE_QUANTS_Q8_0_H
#define RASE_QUANTS_Q8_0_H

#include "common.h"

static size_t q8_0_group_bytes(int64_t cols) { return halves_bytes(cols / 32, 1) + (size_t)cols * RASE_R; }

static void q8_0_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {
    uint8_t *codes = group + halves_bytes(cols / 32, 1);
    memset(group, 0, halves_bytes(cols / 32, 1));
    for (int64_t b = 0; b < cols / 32; b++, src += 34, codes += 8 * VECTOR) {
        pack_halves(src, row_bytes, rows, 1, group + (size_t)b * 2 * RASE_R);
        pack_words(src + 2, row_bytes, rows, 8, codes);
    }
}

static void q8_0_panel(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, float *out) {
    const uint8_t *codes = group + halves_bytes(cols / 32, 1) + (size_t)k0 * RASE_R;
    for (int64_t b = k0 / 32; b < k1 / 32; b++) {
        rf d = rf_from_f16((const uint16_t *)group + b * RASE_R);
        for (int v = 0; v < 8; v++, codes += VECTOR) {
            rb w = rb_load(codes);
            UNROLL(i, 4) {
                rf_store(out, rf_mul(d, rf_from_ri(ri_byte_i8(w, i))));
                out += RASE_R;
            }
        }
    }
}

TEMPLATE void q8_0_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n, float *out,
                        int64_t out_stride) {
    const int64_t blocks = cols / 32;
    const uint16_t *d = (const uint16_t *)group;
    const uint8_t *codes = group + halves_bytes(blocks, 1);
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    const int32_t *sums = act->sums + 2 * row * blocks;
    const uint8_t *ahead = group + RASE_AHEAD;
    rf acc[RASE_TILE_ROWS];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, d += RASE_R, q += 32) {
        ahead = fetch_ahead(ahead, 34 * RASE_R);
        ri sum[2 * RASE_TILE_ROWS];
        UNROLL(t, 2 * n) sum[t] = ri_dot_s8_start(sums[t * blocks + b]);
        UNROLL(v, 8) {
            rb w = rb_load(codes);
            codes += VECTOR;
            UNROLL(t, 2 * n) sum[t] = ri_dot_s8(sum[t], w, q + t * cols + 4 * v);
        }
        rf scale = rf_from_f16(d);
        UNROLL(t, n) acc[t] = join_exact(acc[t], sum[2 * t], sum[2 * t + 1], scale, da[t * blocks + b]);
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

QUANTISED_FORMAT(q8_0, 8, 32, RASE_ACT_Q16_32)

#endif
