/* The K-quants and their like: blocks of 256 weights in 8 or 16 sub-blocks with integer scales (rule R2).
 *
 * Per block and half of the activations, exact in int32: sum = sum over sub-blocks of scale * (sum of code * activation -
 * offset * activation sum), and with minimums side = sum over sub-blocks of minimum * activation sum. Then acc = fma(high,
 * d * (254 da), acc), acc = fma(low, d * da, acc), and with minimums acc = fnma(dmin * da, 254 * high side + low side, acc);
 * float32, blocks ascending.
 *
 * Bounds, with activations in [-127, 127] and |sum of 16| <= 2032: sum before the offset is at most 256 * max code * 127 *
 * max |scale|: Q2_K 15 * 3, Q3_K 32 * 7, Q4_K 63 * 15, Q5_K 63 * 31, Q6_K 128 * 63, so at most 2.63e8 (Q6_K); the offset takes
 * at most 16 * 2032 * 32 * 128 = 1.34e8 (Q6_K); both sides together 8 * 63 * 32 * 32384 = 5.3e8. All below 2^31 = 2.1e9.
 * Codebooks: IQ4_XS 241 * 32 (2.5e8; offset 1.34e8), IQ3_XXS 124 * 31, IQ3_S 30 * 31, IQ2 86 * 31, IQ1 18 * 15, TQ 2: less.
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

/* sum[t] += scale * sub-block 4h + i with code - 128 as signed weights, where rp_dot_u8 takes no code above 127. */
TEMPLATE void block256_signed(const block256 f, const uint8_t *block, int h, int i, ri scale, const int8_t *q, int64_t cols,
                              const int32_t *sums, int64_t sums_stride, const int n, ri *sum) {
    const int s = 4 * h + i;
    rq dot[2 * DOT_TILE];
    UNROLL(t, 2 * n) {
        const int32_t *of = sums + t * sums_stride;
        dot[t] = rq_begin(f.sub == 16 ? of[s] : of[2 * s] + of[2 * s + 1]);
    }
    UNROLL(v, f.sub / 4) {
        rb w = rb_xor(f.codes(block, h, i, v), rb_set1(128));
        UNROLL(t, 2 * n) dot[t] = rq_dot_s8(dot[t], w, q + t * cols + i * f.sub + 4 * v);
    }
    UNROLL(t, 2 * n) sum[t] = ri_add(sum[t], ri_mul(rq_end(dot[t]), scale));
}

TEMPLATE void block256_tile(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row,
                            const int n, float *out, int64_t out_stride) {
    const int64_t blocks = cols / 256;
    const int sub_bytes = (int)block256_bytes(f) * f.sub / 256; /* a sub-block's share of the stream */
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    const int32_t *sums = act->sums + 2 * row * blocks * 16;
    const int is_signed = f.max > 127 && !RP_WIDE; /* then the codes become code - 128, and no offset is left */
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += block256_bytes(f), sums += 16) {
        const uint16_t *halves = (const uint16_t *)group;
        const uint8_t *block = group + block256_halves(f);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        ri sum[2 * DOT_TILE], side[2 * DOT_TILE];
        UNROLL(t, 2 * n) sum[t] = ri_zero();
        rb scales[4];
        f.scales(block, scales);
        for (int h = 0; h < 64 / f.sub; h++) {
            UNROLL(i, 4) {
                rp dot[2 * DOT_TILE];
                read_ahead(group + (4 * h + i) * sub_bytes, i ? (sub_bytes + 32) / 64 : (sub_bytes + 63) / 64);
                rs scale = f.offset ? rs_byte_i8(scales[h], i) : rs_byte_u8(scales[h], i);
                UNROLL(t, 2 * n) dot[t] = rp_begin(ri_zero());
                if (is_signed) {
                    block256_signed(f, block, h, i, ri_byte_i8(scales[h], i), q, cols, sums, blocks * 16, n, sum);
                    continue;
                }
                UNROLL(step, f.sub / 4) {
                    const int v = block256_step(f, step);
                    rb w = f.codes(block, h, i, v);
                    UNROLL(t, 2 * n) dot[t] = rp_dot_u8(dot[t], w, q + t * cols + i * f.sub + 4 * v);
                    if ((step + 1) % RP_CALLS(f.max) == 0 || step + 1 == f.sub / 4) {
                        UNROLL(t, 2 * n) {
                            sum[t] = ri_mad_rp(sum[t], dot[t], scale);
                            dot[t] = rp_begin(ri_zero());
                        }
                    }
                }
            }
            q += 4 * f.sub;
        }
        /* What multiplies the activation sums of each sub-block: the minimums, or offset * scale. */
        if (f.has_minimum) f.minimums(block, scales);
        int16_t narrow[2 * DOT_TILE][16];
        UNROLL(t, 2 * n) {
            side[t] = ri_zero();
            if (f.sub == 16) narrow_sums_16(sums + t * blocks * 16, narrow[t]);
            else narrow_sums_32(sums + t * blocks * 16, narrow[t]);
        }
        if (!is_signed) UNROLL(p, 128 / f.sub) {
            rh pair = f.offset ? rh_pair_i8(scales[p / 2], p & 1) : rh_pair_u8(scales[p / 2], p & 1);
            UNROLL(t, 2 * n) side[t] = ri_dot_rh(side[t], pair, narrow[t] + 2 * p);
        }
        if (f.offset && !is_signed) UNROLL(t, 2 * n) sum[t] = ri_sub(sum[t], ri_mul(side[t], ri_set1(f.offset)));
        UNROLL(t, n) {
            acc[t] = join_halves(acc[t], sum[2 * t], sum[2 * t + 1], d, da[t * blocks + b]);
            if (f.has_minimum) {
                ri low = ri_add(ri_mul(side[2 * t], ri_set1(RASE_HALF)), side[2 * t + 1]);
                acc[t] = rf_fnma(rf_mul(dmin, rf_set1(da[t * blocks + b])), rf_from_ri(low), acc[t]);
            }
        }
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

/* (d * scale) * (code - offset), then - dmin * minimum, each operation rounded: the order of the format's definition. */
TEMPLATE void block256_panel(const block256 f, const uint8_t *group, int64_t k0, int64_t k1, float *out) {
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
                rf minimum = f.has_minimum ? rf_mul(dmin, rf_from_ri(ri_byte_u8(minimums[h], i))) : rf_zero();
                UNROLL(v, f.sub / 4) {
                    rb w = f.codes(block, h, i, v);
                    UNROLL(e, 4) {
                        rf x = rf_mul(scale, rf_from_ri(ri_sub(ri_byte_u8(w, e), ri_set1(f.offset))));
                        rf_store(out, f.has_minimum ? rf_sub(x, minimum) : x);
                        out += RASE_R;
                    }
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

/* Many activation rows: with int8 tiles where the variant has them. */
#if defined(RASE_TILES)
#include "block256_tiles.h"
#define BLOCK256_DOT_NAME(NAME) NAME##_dot
#define BLOCK256_DOT(NAME)                                                                                              \
    static void NAME##_rows(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0,      \
                            int64_t m1, float *out, int64_t out_stride);                                                \
    static void NAME##_dot(const uint8_t *group, int64_t n_groups, int64_t cols, const rase_act *act, int64_t m0,       \
                           int64_t m1, float *out, int64_t out_stride) {                                                \
        if (m1 - m0 < MANY_ROWS) NAME##_rows(group, n_groups, cols, act, m0, m1, out, out_stride);                      \
        else block256_many(NAME, group, n_groups, cols, act, m0, m1, out, out_stride);                                  \
    }
#else
#define BLOCK256_DOT_NAME(NAME) NAME##_rows
#define BLOCK256_DOT(NAME)
#endif

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
    static void NAME##_panel(const uint8_t *group, int64_t cols, int64_t k0, int64_t k1, float *out) {                  \
        (void)cols;                                                                                                     \
        block256_panel(NAME, group, k0, k1, out);                                                                 \
    }                                                                                                                   \
    TEMPLATE void NAME##_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n,        \
                              float *out, int64_t out_stride) {                                                         \
        block256_tile(NAME, group, cols, act, row, n, out, out_stride);                                                 \
    }                                                                                                                   \
    BLOCK256_DOT(NAME)                                                                                                  \
    QUANTISED_FORMAT_DOT(NAME, ID, 256, RASE_ACT_Q16_256, BLOCK256_DOT_NAME(NAME))

#endif
