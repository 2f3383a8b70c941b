/* Blocks of 256 times up to eight rows of activations in int8 tiles (int8_tiles.h). Part of block256_many.h. */
#ifndef RASE_QUANTS_BLOCK256_TILES_H
#define RASE_QUANTS_BLOCK256_TILES_H

#include "int8_tiles.h"

/* Whether that is faster than registers: Q4_K and Q5_K. Sub-blocks of 16 depths take the tile unit as long as those of 32, twice as
 * often (Q6_K: 20 % slower), and the unit shares a port with half of all vector instructions, so that little of its work is free. */
TEMPLATE int block256_in_tiles(const block256 f) { return f.sub == 32 && f.run >= 32 && !f.offset && !f.expand && !f.sixteen; }

/* Sub-block j (constant) of a block to its tile. */
TEMPLATE void block256_i8_unpack(const block256 f, const uint8_t *block, const int j, uint8_t *codes) {
    const int sub_bytes = (int)block256_bytes(f) * f.sub / 256, h = j / 4, i = j % 4;
    read_ahead_of_rows(block + j * sub_bytes, i ? (sub_bytes + 32) / 64 : (sub_bytes + 63) / 64);
    UNROLL(step, f.sub / 4) {
        const int v = block256_step(f, step);
        rb_store(codes + (j * f.sub / 4 + v) * VECTOR, f.codes(block, h, i, v));
    }
}
/* The scales of block b, and the products of its d with those of the rows. */
TEMPLATE void block256_i8_scales(const block256 f, const uint8_t *group, int64_t b, const float *da, int64_t blocks, float *scales,
                                 float *d) {
    rb packed[4];
    f.scales(block256_rest(f, group, b), packed);
    UNROLL(j, 256 / f.sub)
        rf_store(scales + j * RASE_R, rf_from_ri(ri_byte_u8(packed[j / 4], j % 4)));
    rf of_block = block256_d(f, (const uint16_t *)block256_start(f, group, b));
    UNROLL(t, I8_ROWS) rf_store(d + t * RASE_R, rf_mul(of_block, rf_set1(da[t * blocks])));
}
/* The sums of sub-block j enter those of its run; at the run's end these enter `acc`. */
TEMPLATE void block256_i8_finish(const block256 f, const int j, const i8_buffers *buffers, const int block, rf *high, rf *low, rf *acc) {
    const int32_t *sums = buffers->sums[j % I8_RING];
    const float *scales = buffers->scales[block], *d = buffers->d[block];
    const int first = j * f.sub % f.run == 0, last = (j + 1) * f.sub % f.run == 0;
    const rf half = rf_set1(RASE_HALF), scale = rf_load(scales + j * RASE_R);
    UNROLL(t, I8_ROWS) {
        rf h = rf_from_ri(_mm512_load_si512(sums + 2 * t * RASE_R)), l = rf_from_ri(_mm512_load_si512(sums + (2 * t + 1) * RASE_R));
        high[t] = first ? rf_mul(h, scale) : rf_fma(h, scale, high[t]);
        low[t] = first ? rf_mul(l, scale) : rf_fma(l, scale, low[t]);
        if (last) acc[t] = rf_fma(rf_fma(high[t], half, low[t]), rf_load(d + t * RASE_R), acc[t]);
    }
}
TEMPLATE void block256_i8_minimum(const block256 f, const uint8_t *group, int64_t b, int64_t blocks, const rase_act *act, int64_t row,
                                  rf *acc) {
    const int16_t *sides = act->sides + (row * blocks + b) * RASE_SIDES + 32;
    const float *da = act->d + row * blocks + b;
    rf dmin = rf_from_f16((const uint16_t *)block256_start(f, group, b) + RASE_R);
    rb minimums[4];
    f.minimums(block256_rest(f, group, b), minimums);
    ri side[I8_ROWS];
    UNROLL(t, I8_ROWS) side[t] = ri_zero();
    UNROLL(e, 256 / f.sub) {
        rh pair = rh_side(minimums[e / 4], e % 4);
        UNROLL(t, I8_ROWS) side[t] = ri_dot_rh(side[t], pair, sides + t * blocks * RASE_SIDES + 2 * e);
    }
    UNROLL(t, I8_ROWS) acc[t] = rf_fnma(rf_mul(dmin, rf_set1(da[t * blocks])), rf_from_ri(side[t]), acc[t]);
}

/* Eight rows of activations, from `row` on: sums (8, R). */
TEMPLATE void block256_i8_rows(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) {
    const int64_t blocks = cols / 256;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    enum { LAG = 2 };
    const int subs = 256 / f.sub;
    i8_buffers buffers __attribute__((aligned(64)));
    rf acc[I8_ROWS], high[I8_ROWS], low[I8_ROWS];
    UNROLL(t, I8_ROWS) acc[t] = rf_zero();
    tiles_i8();
    const uint8_t *block = block256_rest(f, group, 0);
    block256_i8_scales(f, group, 0, da, blocks, buffers.scales[0], buffers.d[0]);
    UNROLL(j, subs) block256_i8_unpack(f, block, j, buffers.codes[0]);
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t next = b + 1 < blocks ? b + 1 : b;
        const int now = (int)(b & 1);
        block = block256_rest(f, group, next);
        UNROLL(j, subs) {
            i8_multiply(j, q + 256 * b + j * f.sub, cols, buffers.codes[now] + j * f.sub * RASE_R, buffers.sums[j % I8_RING]);
            if (j >= LAG) block256_i8_finish(f, j - LAG, &buffers, now, high, low, acc);
            else if (b) {
                block256_i8_finish(f, subs + j - LAG, &buffers, !now, high, low, acc);
                if (j == LAG - 1 && f.has_minimum) block256_i8_minimum(f, group, b - 1, blocks, act, row, acc);
            }
            if (j == LAG) block256_i8_scales(f, group, next, da + next, blocks, buffers.scales[!now], buffers.d[!now]);
            block256_i8_unpack(f, block, j, buffers.codes[!now]);
        }
    }
    UNROLL(j, LAG) block256_i8_finish(f, subs + j - LAG, &buffers, (int)((blocks - 1) & 1), high, low, acc);
    if (f.has_minimum) block256_i8_minimum(f, group, blocks - 1, blocks, act, row, acc);
    UNROLL(t, I8_ROWS) rf_store(sums + t * RASE_R, acc[t]);
}

#endif
