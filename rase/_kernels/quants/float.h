/* The float formats F32, F16 and BF16 (rule R1): float32 activations, one FMA per element, depth ascending, one float32
 * accumulator per output; lanes are outputs.
 *
 * Packed group of R rows: [cols][R] elements of the file's type, padded to 64 bytes. One FMA waits for the one before it, so
 * several outputs are in flight: 8 activation rows, or fewer rows of several groups. */
#ifndef RASE_QUANTS_FLOAT_H
#define RASE_QUANTS_FLOAT_H

#include "common.h"

typedef rf float_load(const uint8_t *p); /* R elements to float32 */

TEMPLATE size_t float_group_bytes(int64_t cols, int size) { return round_64((size_t)cols * (size_t)size * RASE_R); }

/* `n_groups` consecutive groups times n activation rows. */
TEMPLATE void float_tile(const uint8_t *group, int64_t cols, int size, float_load load, const float *a, int64_t a_stride,
                         const int n, const int n_groups, float *out, int64_t out_stride) {
    const size_t bytes = float_group_bytes(cols, size);
    rf acc[8];
    UNROLL(i, n * n_groups) acc[i] = rf_zero();
    for (int64_t k = 0; k < cols; k++, group += size * RASE_R) {
        UNROLL(g, n_groups) {
            rf w = load(group + (size_t)g * bytes);
            UNROLL(t, n) acc[g * n + t] = rf_fma(w, rf_set1(a[t * a_stride + k]), acc[g * n + t]);
        }
    }
    UNROLL(g, n_groups) UNROLL(t, n) rf_store(out + t * out_stride + g * RASE_R, acc[g * n + t]);
}

#define FLOAT_ROWS(N, GROUPS)                                                                           \
    for (; i + (N) <= m1; i += (N))                                                                     \
        float_tile(group, cols, size, load, act->f32 + i * act->f32_stride, act->f32_stride, (N), (GROUPS), \
                   out + i * out_stride, out_stride);
TEMPLATE void float_dot(const uint8_t *group, int64_t n_groups, int64_t cols, int size, float_load load, const rase_act *act,
                        int64_t m0, int64_t m1, float *out, int64_t out_stride) {
    const size_t bytes = float_group_bytes(cols, size);
    int64_t g = 0, few = m0 + ((m1 - m0) & ~(int64_t)(RASE_TILE_ROWS - 1)); /* whole tiles up to here */
    for (const uint8_t *all = group; g < n_groups && few > m0; g++, all += bytes) {
        for (int64_t i = m0; i < few; i += RASE_TILE_ROWS)
            float_tile(all, cols, size, load, act->f32 + i * act->f32_stride, act->f32_stride, RASE_TILE_ROWS, 1,
                       out + i * out_stride + g * RASE_R, out_stride);
    }
    for (g = 0; g + 4 <= n_groups; g += 4, group += 4 * bytes, out += 4 * RASE_R) {
        int64_t i = few;
#if RASE_TILE_ROWS > 1
        FLOAT_ROWS(2, 4)
#endif
        FLOAT_ROWS(1, 4)
    }
    for (; g < n_groups; g++, group += bytes, out += RASE_R) {
        int64_t i = few;
#if RASE_TILE_ROWS > 1
        FLOAT_ROWS(2, 1)
#endif
        FLOAT_ROWS(1, 1)
    }
}
#undef FLOAT_ROWS

#define FLOAT_FORMAT(NAME, ID, TYPE, LOAD)                                                                            \
    static size_t NAME##_group_bytes(int64_t cols) { return float_group_bytes(cols, sizeof(TYPE)); }                  \
    static void NAME##_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {           \
        TYPE *out = (TYPE *)group;                                                                                    \
        memset(group + (size_t)cols * RASE_R * sizeof(TYPE), 0,                                                       \
               NAME##_group_bytes(cols) - (size_t)cols * RASE_R * sizeof(TYPE));                                      \
        for (int64_t start = 0; start < cols; start += 64) {                                                          \
            int64_t end = start + 64 < cols ? start + 64 : cols;                                                      \
            for (int r = 0; r < RASE_R; r++) {                                                                        \
                for (int64_t k = start; k < end; k++) {                                                               \
                    TYPE x = 0;                                                                                       \
                    if (r < rows) memcpy(&x, src + (size_t)r * row_bytes + (size_t)k * sizeof(TYPE), sizeof(TYPE));   \
                    out[k * RASE_R + r] = x;                                                                          \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    TEMPLATE void NAME##_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {      \
        group += (size_t)k0 * RASE_R * sizeof(TYPE);                                                                  \
        for (int64_t k = 0; k < k1 - k0; k += 2, group += 2 * RASE_R * sizeof(TYPE)) {                                \
            read_ahead(group, (2 * RASE_R * (int)sizeof(TYPE) + 63) / 64);                                            \
            put(to, LOAD(group), (int)(k % 32));                                                                      \
            if (k + 1 < k1 - k0) put(to, LOAD(group + RASE_R * sizeof(TYPE)), (int)(k % 32) + 1);                     \
        }                                                                                                             \
    }                                                                                                                 \
    UNPACKERS(NAME)                                                                                                   \
    static void NAME##_row(const uint8_t *group, int lane, int64_t cols, float *out) {                                \
        float lanes[RASE_R];                                                                                          \
        for (int64_t k = 0; k < cols; k++) {                                                                          \
            NAME##_panel(group, cols, k, k + 1, lanes);                                                               \
            out[k] = lanes[lane];                                                                                     \
        }                                                                                                             \
    }                                                                                                                 \
    static void NAME##_dot(const uint8_t *groups, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0,    \
                           int64_t m1, float *out, int64_t out_stride) {                                              \
        float_dot(groups, n_groups, cols, sizeof(TYPE), LOAD, act, m0, m1, out, out_stride);                          \
    }                                                                                                                 \
    static const rase_format NAME##_format = {(ID),        1,          RASE_ACT_F32, NAME##_group_bytes,              \
                                              NAME##_pack, NAME##_row, NAME##_panel, TILES(NAME), NULL, NAME##_dot};

#endif
