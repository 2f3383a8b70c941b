/* The K-quants and their like: blocks of 256 weights in 8 or 16 sub-blocks with integer scales (rule R2).
 *
 * A run is so many depths that the sum over it of scale * (code - offset) * activation, activation = 254 * high + low, fits
 * int32. Per run, exact: sum = sum over its sub-blocks; acc = fma(sum, d * da, acc). Then, with minimums, side = sum over all
 * sub-blocks of minimum * activation sum; acc = fnma(dmin * da, side, acc). Float32, runs and blocks ascending.
 *
 * Bounds, with activations in [-32384, 32384]: max |scale| * max |code - offset| * 32384 * run: Q2_K 15 * 3, 256: 3.8e8;
 * Q3_K 32 * 4, 256: 1.07e9; Q4_K 63 * 15, 64: 1.96e9; Q5_K 63 * 31, 32: 2.03e9; Q6_K 128 * 32, 16: 2.13e9; IQ4_XS 32 * 127, 16:
 * 2.11e9; IQ3_XXS 31 * 62, 32: 2.0e9; IQ3_S 31 * 15, 128: 1.93e9; IQ2 31 * 43, 32: 1.39e9; IQ1 15 * 9, 256: 1.12e9; TQ2_0 2, 256. The side takes at
 * most 8 * 63 * 32 * 32384 = 5.3e8. All below 2^31 = 2.147e9. Sums of codes without their offset, and of the halves apart, may
 * leave int32: they are taken modulo 2^32, and the whole is right. A sub-block's dot product before its scale stays below
 * 32 * 255 * 127 < 2^21.
 * A product of d with a power of two (unit_shift) is exact.
 *
 * Packed block: R d [, R dmin] float16; vectors of the file's own scale words; then the codes, regrouped so that all vectors
 * of one sub-block lie together. */
#ifndef RASE_QUANTS_BLOCK256_H
#define RASE_QUANTS_BLOCK256_H

#include "common.h"

/* One K-quant. Constant in every use, so that the templates become straight code. */
typedef struct {
    int code_bytes;                               /* of one row's block: scales and codes */
    int sub;                                      /* weights per scale: 16 or 32 */
    int max;                                      /* largest code */
    int offset;                                   /* what the file subtracts from a code; 0 with minimums */
    int has_minimum;
    void (*scales)(const uint8_t *block, rb *out); /* out[h]: scales of sub-blocks 4h to 4h + 3; signed where offset > 0 */
    void (*minimums)(const uint8_t *block, rb *out);
    rb (*codes)(const uint8_t *block, int h, int i, int v); /* vector v (depths 4v ...) of sub-block 4h + i; i, v constant */
    int unit_shift;                               /* d counts in 2^-unit_shift */
    int run;                                      /* depths that are summed in int32 */
    int in_order;                                 /* whether neighbouring vectors share what is loaded, not v and v + sub / 8 */
} block256;

/* Bytes of one block of R rows, and of its halves. */
TEMPLATE size_t block256_bytes(const block256 f) { return (size_t)(f.code_bytes + 2 + 2 * f.has_minimum) * RASE_R; }
TEMPLATE size_t block256_halves(const block256 f) { return (size_t)(2 + 2 * f.has_minimum) * RASE_R; }

/* Both nibbles of a vector in turn, so that one load serves two steps. */
TEMPLATE int block256_step(const block256 f, int step) {
    return f.in_order ? step : (step & 1) * (f.sub / 8) + step / 2;
}

TEMPLATE rf block256_d(const block256 f, const uint16_t *halves) {
    rf d = rf_from_f16(halves);
    return f.unit_shift ? rf_mul(d, rf_set1(1.0f / (float)(1 << f.unit_shift))) : d;
}

/* The sum of `depth` (16 or 32) activations of a row from depth 16 * part on. */
TEMPLATE int32_t side_sum(const int16_t *sides, int part, int depth) {
    const int16_t *pair = sides + 2 * (depth == 16 ? part : 16 + part / 2);
    return 128 * pair[1] + pair[0];
}

/* sum[t] += scale * vectors [v0, v1) of sub-block 4h + i, both halves of n activation rows. Where rp_dot_u8 takes no code above
 * 127 the codes become code - 128, signed. */
TEMPLATE void block256_codes(const block256 f, const uint8_t *block, const rb *scales, int h, int i, const int v0, const int v1,
                             const int8_t *q, int64_t cols, const int n, ri *sum) {
    if (f.max > 127 && !RP_WIDE) {
        ri scale = f.offset ? ri_byte_i8(scales[h], i) : ri_byte_u8(scales[h], i);
        rq dot[2 * DOT_TILE];
        UNROLL(t, 2 * n) dot[t] = rq_begin(0); /* such variants have a signed dot product, which needs no start */
        UNROLL(v, v1 - v0) {
            rb w = rb_xor(f.codes(block, h, i, v0 + v), rb_set1(128));
            UNROLL(t, 2 * n) dot[t] = rq_dot_s8(dot[t], w, q + t * cols + i * f.sub + 4 * (v0 + v));
        }
        UNROLL(t, 2 * n) sum[t] = ri_add(sum[t], ri_mul(rq_end(dot[t]), scale));
        return;
    }
    rs scale = f.offset ? rs_byte_i8(scales[h], i) : rs_byte_u8(scales[h], i);
    rp dot[2 * DOT_TILE];
    UNROLL(t, 2 * n) dot[t] = rp_begin(ri_zero());
    UNROLL(step, v1 - v0) {
        const int v = v0 ? v0 + step : v1 < f.sub / 4 ? step : block256_step(f, step);
        rb w = f.codes(block, h, i, v);
        UNROLL(t, 2 * n) dot[t] = rp_dot_u8(dot[t], w, q + t * cols + i * f.sub + 4 * v);
        if ((step + 1) % RP_CALLS(f.max) == 0 || step + 1 == v1 - v0) {
            UNROLL(t, 2 * n) {
                sum[t] = ri_mad_rp(sum[t], dot[t], scale);
                dot[t] = rp_begin(ri_zero());
            }
        }
    }
}

TEMPLATE void block256_tile(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row,
                            const int n, float *out, int64_t out_stride) {
    const int64_t blocks = cols / 256;
    const int sub_bytes = (int)block256_bytes(f) * f.sub / 256; /* a sub-block's share of the stream */
    const int part = f.run < f.sub ? f.run : f.sub;             /* depths between two chances of a run's end */
    const int offset = f.max > 127 && !RP_WIDE ? f.offset - 128 : f.offset;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    const int16_t *sides = act->sides + row * blocks * RASE_SIDES;
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += block256_bytes(f), sides += RASE_SIDES) {
        const uint16_t *halves = (const uint16_t *)group;
        const uint8_t *block = group + block256_halves(f);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        ri sum[2 * DOT_TILE], less[DOT_TILE]; /* of the run: both halves, and what the offset takes */
        UNROLL(t, 2 * n) sum[t] = ri_zero();
        UNROLL(t, n) less[t] = ri_zero();
        rb scales[4];
        f.scales(block, scales);
        for (int h = 0; h < 64 / f.sub; h++) {
            UNROLL(i, 4) {
                read_ahead(group + (4 * h + i) * sub_bytes, i ? (sub_bytes + 32) / 64 : (sub_bytes + 63) / 64);
                UNROLL(e, f.sub / part) {
                    block256_codes(f, block, scales, h, i, e * part / 4, (e + 1) * part / 4, q, cols, n, sum);
                    if (offset) {
                        ri scale = ri_mul(ri_byte_i8(scales[h], i), ri_set1(offset));
                        UNROLL(t, n) {
                            int32_t of = side_sum(sides + t * blocks * RASE_SIDES, ((4 * h + i) * f.sub + e * part) / 16, part);
                            less[t] = ri_add(less[t], ri_mul(scale, ri_set1(of)));
                        }
                    }
                    const int end = i * f.sub + (e + 1) * part; /* of the four sub-blocks */
                    if (f.run <= 4 * f.sub ? end % f.run == 0 : end == 4 * f.sub && (h + 1) * end % f.run == 0) {
                        UNROLL(t, n) {
                            ri all = ri_add(ri_mul(sum[2 * t], ri_set1(RASE_HALF)), sum[2 * t + 1]);
                            if (offset) all = ri_sub(all, less[t]);
                            acc[t] = rf_fma(rf_from_ri(all), rf_mul(d, rf_set1(da[t * blocks + b])), acc[t]);
                            sum[2 * t] = sum[2 * t + 1] = less[t] = ri_zero();
                        }
                    }
                }
            }
            q += 4 * f.sub;
        }
        if (f.has_minimum) {
            f.minimums(block, scales);
            UNROLL(t, n) {
                const int16_t *of = sides + t * blocks * RASE_SIDES + (f.sub == 16 ? 0 : 32);
                ri side = ri_zero();
                UNROLL(e, 256 / f.sub) side = ri_dot_rh(side, rh_side(scales[e / 4], e % 4), of + 2 * e);
                acc[t] = rf_fnma(rf_mul(dmin, rf_set1(da[t * blocks + b])), rf_from_ri(side), acc[t]);
            }
        }
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

#ifdef RASE_WIDE_GROUPS
/* One block to a panel of wide.h. */
TEMPLATE void block256_wide(const block256 f, const uint8_t *group, wide_panel *panel) {
    const uint16_t *halves = (const uint16_t *)group;
    const uint8_t *block = group + block256_halves(f);
    int16_t *to = panel->weights;
    rb scales[4];
    rf_store(panel->d, block256_d(f, halves));
    f.scales(block, scales);
    for (int h = 0; h < 64 / f.sub; h++) {
        UNROLL(i, 4) {
            rh scale = f.offset ? rh_twice_i8(scales[h], i) : rh_twice_u8(scales[h], i);
            rh less = rh_mul(scale, rh_set1((int16_t)f.offset));
            UNROLL(v, f.sub / 4) {
                rb w = f.codes(block, h, i, v);
                rh even = rh_mul(rh_even_u8(w), scale), odd = rh_mul(rh_odd_u8(w), scale);
                rh_store(to, f.offset ? rh_sub(even, less) : even);
                rh_store(to + 2 * RASE_R, f.offset ? rh_sub(odd, less) : odd);
                to += 4 * RASE_R;
            }
        }
    }
    if (f.has_minimum) {
        rf_store(panel->minimum, rf_from_f16(halves + RASE_R));
        f.minimums(block, scales);
        UNROLL(s, 256 / f.sub) rh_store(panel->sides + 2 * s * RASE_R, rh_side(scales[s / 4], s % 4));
    }
}
#define BLOCK256_WIDE(NAME)                                                                                           \
    static void NAME##_wide(const uint8_t *block, int count, wide_panel *panel) {        \
        (void)count;                                                                     \
        block256_wide(NAME, block, panel);                                               \
    }
#else
#define BLOCK256_WIDE(NAME)
#endif

#ifdef RASE_FOUR_ROWS
/* Four rows of activations, from `row` on: sums (4, R). */
TEMPLATE void block256_four(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) {
    const int64_t blocks = cols / 256;
    const int sub_bytes = (int)block256_bytes(f) * f.sub / 256, part = f.run < f.sub ? f.run : f.sub;
    const float *da = act->d + row * blocks;
    const int16_t *sides = act->sides + row * blocks * RASE_SIDES;
    rf acc[4];
    UNROLL(t, 4) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += block256_bytes(f), sides += RASE_SIDES) {
        const uint16_t *halves = (const uint16_t *)group;
        const uint8_t *block = group + block256_halves(f);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        ri sum[8];
        UNROLL(t, 8) sum[t] = ri_zero();
        rb scales[4];
        f.scales(block, scales);
        for (int h = 0; h < 64 / f.sub; h++) {
            const int16_t *a = wide_at(act, cols, row, 256 * b + 4 * h * f.sub);
            UNROLL(i, 4) {
                read_ahead(group + (4 * h + i) * sub_bytes, i ? (sub_bytes + 32) / 64 : (sub_bytes + 63) / 64);
                rh scale = f.offset ? rh_twice_i8(scales[h], i) : rh_twice_u8(scales[h], i);
                rh less = rh_mul(scale, rh_set1((int16_t)f.offset));
                UNROLL(step, f.sub / 4) {
                    const int v = part < f.sub ? step : block256_step(f, step), k = i * f.sub + 4 * v;
                    rb w = f.codes(block, h, i, v);
                    rh even = rh_mul(rh_even_u8(w), scale), odd = rh_mul(rh_odd_u8(w), scale);
                    if (f.offset) even = rh_sub(even, less), odd = rh_sub(odd, less);
                    four_dots(sum, even, odd, a + k / RASE_WIDE_COLS * WIDE_RUN + k % RASE_WIDE_COLS);
                    const int end = i * f.sub + 4 * (step + 1); /* of the four sub-blocks */
                    if (f.run <= 4 * f.sub ? end % f.run == 0 : end == 4 * f.sub && (h + 1) * end % f.run == 0) {
                        UNROLL(t, 4) {
                            acc[t] = rf_fma(rf_from_ri(ri_add(sum[t], sum[4 + t])), rf_mul(d, rf_set1(da[t * blocks + b])), acc[t]);
                            sum[t] = sum[4 + t] = ri_zero();
                        }
                    }
                }
            }
        }
        if (f.has_minimum) {
            f.minimums(block, scales);
            ri side[4];
            UNROLL(t, 4) side[t] = ri_zero();
            UNROLL(e, 256 / f.sub) {
                rh pair = rh_side(scales[e / 4], e % 4);
                UNROLL(t, 4) side[t] = ri_dot_rh(side[t], pair, sides + t * blocks * RASE_SIDES + (f.sub == 16 ? 0 : 32) + 2 * e);
            }
            UNROLL(t, 4) acc[t] = rf_fnma(rf_mul(dmin, rf_set1(da[t * blocks + b])), rf_from_ri(side[t]), acc[t]);
        }
    }
    UNROLL(t, 4) rf_store(sums + t * RASE_R, acc[t]);
}
#define BLOCK256_FOUR(NAME) \
    static void NAME##_four(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) {      \
        block256_four(NAME, group, cols, act, row, sums);                                                             \
    }
#else
#define BLOCK256_FOUR(NAME)
#endif

/* (d * scale) * (code - offset), then - dmin * minimum, each operation rounded: the order of the format's definition. With a
 * minimum the products are exact (11 + 6 + 5 bits), so that one FMA rounds as the subtraction does. */
TEMPLATE void block256_unpack(const block256 f, const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {
    const int sub_bytes = (int)block256_bytes(f) * f.sub / 256;
    for (int64_t b = k0 / 256; b < k1 / 256; b++) {
        const uint8_t *start = group + (size_t)b * block256_bytes(f), *block = start + block256_halves(f);
        const uint16_t *halves = (const uint16_t *)start;
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        rb scales[4], minimums[4];
        f.scales(block, scales);
        if (f.has_minimum) f.minimums(block, minimums);
        for (int h = 0; h < 64 / f.sub; h++) {
            UNROLL(i, 4) {
                rf scale = rf_mul(d, rf_from_ri(f.offset ? ri_byte_i8(scales[h], i) : ri_byte_u8(scales[h], i)));
                rf less = rf_set1(-0.0f);
                if (f.has_minimum) less = rf_sub(less, rf_mul(dmin, rf_from_ri(ri_byte_u8(minimums[h], i))));
                read_ahead(start + (4 * h + i) * sub_bytes, i ? (sub_bytes + 32) / 64 : (sub_bytes + 63) / 64);
                UNROLL(v, f.sub / 4) {
                    rb w = f.codes(block, h, i, v);
                    rf code[4];
                    rf_codes(w, f.max, f.offset, code);
                    UNROLL(e, 4) put(to, f.has_minimum ? rf_fma(scale, code[e], less) : rf_mul(scale, code[e]), i * f.sub + 4 * v + e);
                }
            }
        }
    }
}

/* Scales and minimums of Q4_K and Q5_K, 6 bits each: words A, B, C of 4 bytes. Scales 0-3 are the low bits of A, minimums 0-3
 * those of B; scales 4-7 are the low nibbles of C below the top bits of A, minimums 4-7 the high nibbles below those of B. */
TEMPLATE void six_bit_scales(const uint8_t *block, rb *out) {
    rb a = rb_load(block), c = rb_load(block + 2 * VECTOR);
    out[0] = rb_and(a, rb_set1(63));
    out[1] = rb_or(rb_and(c, rb_set1(15)), move_bits(a, 6, 4, 0x30));
}
TEMPLATE void six_bit_minimums(const uint8_t *block, rb *out) {
    rb b = rb_load(block + VECTOR), c = rb_load(block + 2 * VECTOR);
    out[0] = rb_and(b, rb_set1(63));
    out[1] = rb_or(move_bits(c, 4, 0, 0x0f), move_bits(b, 6, 4, 0x30));
}

/* 16 vectors of 2-bit fields in the file's order (16h + 8e + v: half h of the block, byte 16e + 4v; field j is depth
 * 128h + 32j + 16e + 4v) to one vector per 16 depths, field v for depths 4v to 4v + 3: vector g goes to out + g * stride. */
static void regroup_pairs(const uint8_t *codes, uint8_t *out, int stride) {
    uint8_t four[4 * VECTOR];
    for (int h = 0; h < 2; h++) {
        for (int e = 0; e < 2; e++) {
            memcpy(four, codes + (8 * h + 4 * e) * VECTOR, sizeof four);
            transpose_pairs(four);
            for (int j = 0; j < 4; j++) memcpy(out + (8 * h + 2 * j + e) * stride, four + j * VECTOR, VECTOR);
        }
    }
}

/* Nibble i of the low 16 bits of every lane to byte i. */
TEMPLATE rb spread_nibbles(rb x) {
    rb low = rb_or(rb_and(x, rb_lanes(0x0f)), rb_and(rb_lane_shl(x, 4), rb_lanes(0x0f00)));
    return rb_or(low, rb_or(rb_and(rb_lane_shl(x, 8), rb_lanes(0x0f0000)), rb_and(rb_lane_shl(x, 12), rb_lanes(0x0f000000))));
}

#define BLOCK256_FORMAT(NAME, ID)                                                                                       \
    static size_t NAME##_group_bytes(int64_t cols) { return round_64((size_t)(cols / 256) * block256_bytes(NAME)); }    \
    static void NAME##_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {             \
        memset(group, 0, NAME##_group_bytes(cols));                                                                     \
        for (int64_t b = 0; b < cols / 256; b++, group += block256_bytes(NAME))                                         \
            src += NAME##_pack_block(src, row_bytes, rows, group, group + block256_halves(NAME));                       \
    }                                                                                                                   \
    TEMPLATE void NAME##_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {        \
        block256_unpack(NAME, group, k0, k1, put, to);                                                                  \
    }                                                                                                                   \
    TEMPLATE void NAME##_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n,        \
                              float *out, int64_t out_stride) {                                                         \
        block256_tile(NAME, group, cols, act, row, n, out, out_stride);                                                 \
    }                                                                                                                   \
    BLOCK256_FOUR(NAME) BLOCK256_WIDE(NAME)                                                                                                 \
    QUANTISED_FORMAT(NAME, ID, 256, RASE_ACT_Q16_256, NAME.run, NAME.has_minimum ? 256 / NAME.sub : 0, block256_bytes(NAME))

#endif
