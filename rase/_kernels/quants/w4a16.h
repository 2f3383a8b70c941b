/* W4A16 (AWQ): weight = d * code - d * zero, code 0..15, in groups of 128 depths with a float16 scale and a float16 zero point.
 *
 * Float32 activations (rule R1): one FMA per element, depth ascending, one float32 accumulator per output; lanes are outputs. A
 * weight itself is one FMA, d * code + -(d * zero): both products are exact in float32, so it is rounded once, and exact for the
 * whole zero points of 0 to 15 that files have.
 *
 * File row: per group the scale, the zero point, then nibbles, depth ascending from the low nibble up. Packed block: R scales,
 * R zero points, 16 vectors of R words: a word holds 8 consecutive depths of its row. A weight is looked up or converted in
 * its lane: nothing is widened in memory. */
#ifndef RASE_QUANTS_W4A16_H
#define RASE_QUANTS_W4A16_H

#include "common.h"

enum { W4A16_GROUP = 128, W4A16_WORDS = W4A16_GROUP / 8, W4A16_ROW = 4 + W4A16_GROUP / 2, W4A16_BLOCK = W4A16_ROW * RASE_R };

static size_t w4a16_group_bytes(int64_t cols) { return round_64((size_t)(cols / W4A16_GROUP) * W4A16_BLOCK); }

static void w4a16_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {
    uint8_t *end = group + w4a16_group_bytes(cols);
    for (int64_t b = 0; b < cols / W4A16_GROUP; b++, src += W4A16_ROW, group += W4A16_BLOCK) {
        pack_halves(src, row_bytes, rows, 2, group);
        pack_words(src + 4, row_bytes, rows, W4A16_WORDS, group + 4 * RASE_R);
    }
    memset(group, 0, (size_t)(end - group));
}

typedef struct {
    rf d, shift; /* shift = -(d * zero) */
} w4a16_scale;

TEMPLATE w4a16_scale w4a16_scales(const uint8_t *block) {
    rf d = rf_from_f16((const uint16_t *)block), zero = rf_from_f16((const uint16_t *)block + RASE_R);
    return (w4a16_scale){d, rf_sub(rf_set1(-0.0f), rf_mul(d, zero))};
}
TEMPLATE rf w4a16_weight(rb word, const int j, w4a16_scale s) { return rf_fma(rf_nibble(word, j), s.d, s.shift); }

TEMPLATE void w4a16_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {
    for (const uint8_t *block = group + k0 / W4A16_GROUP * W4A16_BLOCK; k0 < k1; k0 += W4A16_GROUP, block += W4A16_BLOCK) {
        w4a16_scale s = w4a16_scales(block);
        read_ahead(block, 4 * RASE_R / 64 + 1);
        for (int v = 0; v < W4A16_WORDS; v++) {
            const uint8_t *p = block + 4 * RASE_R + v * VECTOR;
            read_ahead(p, VECTOR / 64 ? VECTOR / 64 : 1);
            rb word = rb_load(p);
            UNROLL(j, 8) put(to, w4a16_weight(word, j, s), 8 * v + j);
        }
    }
}
UNPACKERS(w4a16)

/* `n_groups` consecutive groups times n activation rows: one FMA waits for the one before it, so several are in flight. */
TEMPLATE void w4a16_tile(const uint8_t *group, int64_t cols, const float *a, int64_t a_stride, const int n, const int n_groups,
                         float *out, int64_t out_stride) {
    const size_t bytes = w4a16_group_bytes(cols);
    rf acc[8];
    UNROLL(i, n * n_groups) acc[i] = rf_zero();
    for (int64_t b = 0; b < cols / W4A16_GROUP; b++, group += W4A16_BLOCK) {
        w4a16_scale s[4];
        UNROLL(g, n_groups) s[g] = w4a16_scales(group + (size_t)g * bytes);
        for (int v = 0; v < W4A16_WORDS; v++, a += 8) {
            rb word[4];
            UNROLL(g, n_groups) {
                const uint8_t *p = group + (size_t)g * bytes + 4 * RASE_R + v * VECTOR;
                read_ahead(p, VECTOR / 64 ? VECTOR / 64 : 1);
                word[g] = rb_load(p);
            }
            UNROLL(j, 8) UNROLL(g, n_groups) {
                rf w = w4a16_weight(word[g], j, s[g]);
                UNROLL(t, n) acc[g * n + t] = rf_fma(w, rf_set1(a[t * a_stride + j]), acc[g * n + t]);
            }
        }
    }
    UNROLL(g, n_groups) UNROLL(t, n) rf_store(out + t * out_stride + g * RASE_R, acc[g * n + t]);
}

#define W4A16_ROWS(N, GROUPS, TO)                                                                                     \
    for (; i + (N) <= (TO); i += (N))                                                                                 \
        w4a16_tile(group, cols, act->f32 + i * act->f32_stride, act->f32_stride, (N), (GROUPS), out + i * out_stride, \
                   out_stride);
/* Whole tiles of rows take a group at a time, the rest of them four. */
static void w4a16_dot(const uint8_t *groups, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0, int64_t m1,
                      float *outs, int64_t out_stride) {
    const size_t bytes = w4a16_group_bytes(cols);
    const int64_t few = m0 + ((m1 - m0) & ~(int64_t)(RASE_TILE_ROWS - 1));
    const uint8_t *group = groups;
    float *out = outs;
    for (int64_t g = 0; g < n_groups && few > m0; g++, group += bytes, out += RASE_R) {
        int64_t i = m0;
        W4A16_ROWS(RASE_TILE_ROWS, 1, few)
    }
    group = groups, out = outs;
    for (int64_t g = 0; g < n_groups && few < m1;) {
        int64_t i = few, step = n_groups - g < 4 ? 1 : 4;
        if (step == 4) {
            W4A16_ROWS(2, 4, m1)
            W4A16_ROWS(1, 4, m1)
        } else {
            W4A16_ROWS(2, 1, m1)
            W4A16_ROWS(1, 1, m1)
        }
        g += step, group += (size_t)step * bytes, out += step * RASE_R;
    }
}
#undef W4A16_ROWS

static void w4a16_row(const uint8_t *group, int lane, int64_t cols, float *out) {
    float block[W4A16_GROUP * RASE_R];
    for (int64_t k = 0; k < cols; k += W4A16_GROUP) {
        w4a16_panel(group, cols, k, k + W4A16_GROUP, block);
        for (int i = 0; i < W4A16_GROUP; i++) out[k + i] = block[i * RASE_R + lane];
    }
}
static const rase_format w4a16_format = {63,         W4A16_GROUP, RASE_ACT_F32, w4a16_group_bytes,
                                         w4a16_pack, w4a16_row,   w4a16_panel,  TILES(w4a16), w4a16_dot};

#endif
