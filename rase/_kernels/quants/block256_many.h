/* Blocks of 256 times many rows of activations: panels of wide.h, and four or eight rows in registers. Part of block256.h, whose accumulator
 * and bounds hold here, too. */
#ifndef RASE_QUANTS_BLOCK256_MANY_H
#define RASE_QUANTS_BLOCK256_MANY_H

#if defined(RASE_WIDE_GROUPS) || defined(RASE_FOUR_ROWS)
/* The scale of a sub-block, to be multiplied with its codes as int16, and what the offset takes. */
typedef struct {
#ifdef RASE_SCALE_PAIRS
    rb even, odd;
#else
    rh scale;
#endif
    rh less;
} block256_factor;
TEMPLATE block256_factor block256_scale(const block256 f, const rb *scales, int h, int i) {
    block256_factor factor;
#ifdef RASE_SCALE_PAIRS
    factor.even = rb_scale_pairs(scales[h], i), factor.odd = rb_shl(factor.even, 8);
    if (f.offset) factor.less = rh_scaled(rb_set1((uint8_t)f.offset), factor.even);
#else
    factor.scale = f.signed_scales ? rh_twice_i8(scales[h], i) : rh_twice_u8(scales[h], i);
    factor.less = rh_mul(factor.scale, rh_set1((int16_t)f.offset));
#endif
    return factor;
}
/* scale * (code - offset) of bytes 0 and 2, and of bytes 1 and 3, of every lane. */
TEMPLATE void block256_scaled(const block256 f, rb codes, const block256_factor *factor, rh *even, rh *odd) {
#ifdef RASE_SCALE_PAIRS
    *even = rh_scaled(codes, factor->even), *odd = rh_scaled(codes, factor->odd);
#else
    *even = rh_mul(rh_even_u8(codes), factor->scale), *odd = rh_mul(rh_odd_u8(codes), factor->scale);
#endif
    if (f.offset) *even = rh_sub(*even, factor->less), *odd = rh_sub(*odd, factor->less);
}
#endif

#ifdef RASE_WIDE_GROUPS
TEMPLATE void block256_wide_subs(const block256 f, const uint8_t *block, const uint8_t *expanded, const rb *scales, int h, int16_t *to) {
    UNROLL(i, 4) {
        const block256_factor factor = block256_scale(f, scales, h, i);
        UNROLL(v, f.sub / 4) {
            rh even, odd;
            block256_scaled(f, block256_code(f, block, expanded, h, i, v), &factor, &even, &odd);
            rh_store(to, even);
            rh_store(to + 2 * RASE_R, odd);
            to += 4 * RASE_R;
        }
    }
}
/* One block to a panel of wide.h. */
TEMPLATE void block256_wide(const block256 f, const uint8_t *group, int64_t b, wide_panel *panel) {
    const uint16_t *halves = (const uint16_t *)block256_start(f, group, b);
    const uint8_t *block = block256_rest(f, group, b);
    rb scales[4];
    rf_store(panel->d, block256_d(f, halves));
    f.scales(block, scales);
    BLOCK256_EXPANDED;
    if (f.expand) f.expand(block, expanded);
    for (int h = 0; h < 64 / f.sub; h++) block256_wide_subs(f, block, expanded, scales, h, panel->weights + 4 * h * f.sub * RASE_R);
    if (f.has_minimum) {
        rf_store(panel->minimum, rf_sub(rf_set1(-0.0f), rf_from_f16(halves + RASE_R)));
        f.minimums(block, scales);
        UNROLL(s, 256 / f.sub) rh_store(panel->sides + 2 * s * RASE_R, rh_side(scales[s / 4], s % 4));
    }
}
#define BLOCK256_WIDE(NAME)                                                                              \
    static void NAME##_wide(const uint8_t *group, int64_t first, int count, wide_panel *panel) {          \
        (void)count;                                                                                     \
        block256_wide(NAME, group, first, panel);                                                        \
    }
#else
#define BLOCK256_WIDE(NAME)
#endif

#ifdef RASE_FOUR_ROWS
TEMPLATE void block256_rows_subs(const block256 f, const uint8_t *block, const uint8_t *expanded, const rb *scales, int h, const int16_t *a, const rf *d,
                                 ri *sum, rf *acc, int64_t next, const int n) {
    const int part = f.run < f.sub ? f.run : f.sub;
    const int16_t *fours[2] = {a, a + next};
    KEEP_POINTERS(fours)
    UNROLL(i, 4) {
        const block256_factor factor = block256_scale(f, scales, h, i);
        UNROLL(step, f.sub / 4) {
            const int v = part < f.sub ? step : block256_step(f, step), k = i * f.sub + 4 * v;
            block256_read_ahead(f, block, h, i * f.sub / 4 + step, f.sub);
            rh even, odd;
            block256_scaled(f, block256_code(f, block, expanded, h, i, v), &factor, &even, &odd);
            rows_dots(sum, even, odd, fours, k / RASE_WIDE_COLS * WIDE_RUN + k % RASE_WIDE_COLS, n, f.run);
            const int end = i * f.sub + 4 * (step + 1); /* of the four sub-blocks */
            if (f.run <= 4 * f.sub ? end % f.run == 0 : end == 4 * f.sub && (h + 1) * end % f.run == 0) {
                UNROLL(t, n) {
                    acc[t] = rf_fma(rf_from_ri(rows_sum(sum, t, n, f.run)), d[t], acc[t]);
                    sum[t] = ri_zero();
                    if (rows_chains(n, f.run) > 1) sum[n + t] = ri_zero();
                }
            }
        }
    }
}
/* n (4 or 8) rows of activations, from `row` on: sums (n, R). */
TEMPLATE void block256_rows(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums,
                            const int n) {
    const int64_t blocks = cols / 256;
    const float *da = act->d + row * blocks;
    const int16_t *sides = act->sides + row * blocks * RASE_SIDES;
    rf acc[8], of_rows[8];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, sides += RASE_SIDES) {
        const uint16_t *halves = (const uint16_t *)block256_start(f, group, b);
        const uint8_t *block = block256_rest(f, group, b);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        ri sum[16];
        UNROLL(t, 2 * n) sum[t] = ri_zero();
        UNROLL(t, n) of_rows[t] = rf_mul(d, rf_set1(da[t * blocks + b]));
        rb scales[4];
        f.scales(block, scales);
        BLOCK256_EXPANDED;
        if (f.expand) f.expand(block, expanded);
        for (int h = 0; h < 64 / f.sub; h++)
            block256_rows_subs(f, block, expanded, scales, h, wide_at(act, cols, row, 256 * b + 4 * h * f.sub), of_rows, sum, acc,
                                4 * cols, n);
        if (f.has_minimum) {
            f.minimums(block, scales);
            ri side[8];
            UNROLL(t, n) side[t] = ri_zero();
            UNROLL(e, 256 / f.sub) {
                rh pair = rh_side(scales[e / 4], e % 4);
                UNROLL(t, n) side[t] = ri_dot_rh(side[t], pair, sides + t * blocks * RASE_SIDES + (f.sub == 16 ? 0 : 32) + 2 * e);
            }
            UNROLL(t, n) acc[t] = rf_fnma(rf_mul(dmin, rf_set1(da[t * blocks + b])), rf_from_ri(side[t]), acc[t]);
        }
    }
    UNROLL(t, n) rf_store(sums + t * RASE_R, acc[t]);
}
#ifdef RASE_TILES
#include "block256_tiles.h"
#define BLOCK256_IN_TILES(NAME)                                                               \
    if (block256_in_tiles(NAME) && m1 - m0 > 4) {                                             \
        NAME##_in_tiles(group, n_groups, cols, act, m0, m1, out, out_stride);                 \
        return 1;                                                                             \
    }
#else
#define BLOCK256_STREAM(NAME)
#define BLOCK256_IN_TILES(NAME)
#endif
#define BLOCK256_ROWS(NAME)                                                                                                      \
    BLOCK256_STREAM(NAME)                                                                                                        \
    ROWS_OF(NAME, block256_rows(NAME, group, cols, act, row, sums, 4), block256_rows(NAME, group, cols, act, row, sums, 8), BLOCK256_IN_TILES(NAME))
#else
#define BLOCK256_ROWS(NAME)
#endif

#endif
