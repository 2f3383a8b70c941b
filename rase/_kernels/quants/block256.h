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
 * of one sub-block lie together. Where that would start vectors in the middle of a cache line, blocks come in pairs: R d of both, then
 * the rest of the first and of the second. */
#ifndef RASE_QUANTS_BLOCK256_H
#define RASE_QUANTS_BLOCK256_H

#include "common.h"

/* One K-quant. Constant in every use, so that the templates become straight code. */
typedef struct {
    int code_bytes;                               /* of one row's block: scales and codes; a multiple of 4 */
    int sub;                                      /* weights per scale: 16 or 32 */
    int max;                                      /* largest code */
    int offset;                                   /* what the file subtracts from a code; 0 with minimums */
    int has_minimum;
    int signed_scales;
    int has_word;                                 /* whether 16 bits a row stand beside d */
    void (*scales)(const uint8_t *block, rb *out); /* out[h]: scales of sub-blocks 4h to 4h + 3; signed where offset > 0 */
    void (*minimums)(const uint8_t *block, rb *out);
    rb (*codes)(const uint8_t *block, int h, int i, int v); /* vector v (depths 4v ...) of sub-block 4h + i; i, v constant */
    int unit_shift;                               /* d counts in 2^-unit_shift */
    int run;                                      /* depths that are summed in int32 */
    int in_order;                                 /* whether neighbouring vectors share what is loaded, not v and v + sub / 8 */
    int fixed;                                    /* whether `codes` wants h constant, too */
    /* NULL, or all codes of a block at once, in order, for what would else unpack costly ones in many places. */
    void (*expand)(const uint8_t *block, uint8_t *codes);
    /* NULL, or the four vectors of codes of half e of sub-block 4h + i (of all of 16 depths). */
    void (*sixteen)(const uint8_t *block, int h, int i, int e, rb *out);
    int turned;                                   /* 0, or of how many depths, 16 or 32, they are turned (turned.h) */
    /* NULL, or what stands for `codes` where codebooks are in registers: scale * (code - offset) = factor * level + less, and sums of
     * level * activation's halves over a sub-block stay in int16: 254 * factor, too, and 128 * less. */
    rb (*levels)(const uint8_t *block, int h, int i, int v);
    /* Of sub-block 4h + i: (254 * factor, factor) and (less, 128 * less) as int16. */
    void (*factors)(const uint8_t *block, int h, int i, rh *factor, rh *less);
    rf (*scale)(const uint8_t *block, int s); /* NULL, or the scale of sub-block s, where that is less work than to take it out of `scales` (prepared.h) */
    /* NULL, or, where sums of a sub-block's codes less offset times activation's halves fit int16, the scale of sub-block s in the lower half of a
     * lane; and whether its first eight and its last eight codes are two more than those of `sixteen`, 1 or 0 in each half. */
    rh (*short_scale)(const uint8_t *block, int s);
    rh (*above)(const uint8_t *block, int s);
} block256;

/* R halves of a block, one after another: d, and dmin or what NAME_pack_block puts there. */
TEMPLATE int block256_heads(const block256 f) { return f.has_minimum || f.has_word ? 2 : 1; }
TEMPLATE size_t block256_bytes(const block256 f) { return (size_t)(f.code_bytes + 2 * block256_heads(f)) * RASE_R; }
/* Where block b of a group has its halves, and the rest. */
TEMPLATE uint8_t *block256_start(const block256 f, const uint8_t *group, int64_t b) {
    size_t start = block256_heads(f) == 2 ? (size_t)b * block256_bytes(f) : (size_t)(b & ~(int64_t)1) * block256_bytes(f) + (size_t)(b & 1) * 2 * RASE_R;
    return (uint8_t *)group + start;
}
TEMPLATE uint8_t *block256_rest(const block256 f, const uint8_t *group, int64_t b) {
    size_t start = block256_heads(f) == 2 ? (size_t)b * block256_bytes(f) : (size_t)(b & ~(int64_t)1) * block256_bytes(f) + (size_t)(b & 1) * (size_t)f.code_bytes * RASE_R;
    return (uint8_t *)group + start + 4 * RASE_R;
}

/* Both nibbles of a vector in turn, so that one load serves two steps. */
TEMPLATE int block256_step(const block256 f, int step) {
    return f.in_order ? step : (step & 1) * (f.sub / 8) + step / 2;
}

/* Step `step` of `steps` of the reading ahead beside sub-blocks 4h to 4h + 3: in small portions, and so many lines that none is left out wherever
 * these sub-blocks begin. */
TEMPLATE void block256_read_ahead(const block256 f, const uint8_t *block, int h, const int step, const int steps) {
    const int four = (int)block256_bytes(f) * f.sub / 64, lines = (four + 63) / 64, first = (step * lines + steps - 1) / steps;
    const int count = ((step + 1) * lines + steps - 1) / steps - first;
    if (count) read_ahead(block + h * four + 64 * first, count);
}

/* CALL with h = 0 ... for every four sub-blocks. */
#define BLOCK256_FOURS(f, CALL)                                                       \
    if ((f).fixed) {                                                                  \
        UNROLL(h, 64 / (f).sub) { CALL; }                                             \
    } else {                                                                          \
        for (int h = 0; h < 64 / (f).sub; h++) { CALL; }                                \
    }

/* NAME_expand by NAME_codes. Not inlined: these codes are long. */
#define BLOCK256_EXPAND(NAME, SUB, FIXED)                                                                             \
    static __attribute__((noinline)) void NAME##_expand(const uint8_t *block, uint8_t *codes) {                       \
        const block256 f = {.sub = (SUB), .fixed = (FIXED)};                                                          \
        BLOCK256_FOURS(f, {                                                                                           \
            rb out[SUB]; /* of four sub-blocks: stores between them would make the compiler look everything up again */ \
            UNROLL(i, 4) { UNROLL(v, (SUB) / 4) out[i * (SUB) / 4 + v] = NAME##_codes(block, h, i, v); }               \
            UNROLL(k, 2) { UNROLL(v, (SUB) / 2) rb_store(codes + (h * (SUB) + k * (SUB) / 2 + v) * VECTOR, out[k * (SUB) / 2 + v]); } \
        })                                                                                                            \
    }
/* Room for them, and codes from there or from the block. */
#define BLOCK256_EXPANDED uint8_t expanded[64 * VECTOR] __attribute__((aligned(64)))
TEMPLATE rb block256_code(const block256 f, const uint8_t *block, const uint8_t *expanded, int h, int i, int v) {
    return f.expand ? rb_load(expanded + ((4 * h + i) * f.sub / 4 + v) * VECTOR) : f.codes(block, h, i, v);
}

TEMPLATE int block256_vector(const block256 f, int v0, int v1, int step) {
    return v1 - v0 < f.sub / 4 ? v0 + step : block256_step(f, step);
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
        const int v = block256_vector(f, v0, v1, step);
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

/* What a tile of n rows keeps of the block that it is at. */
typedef struct {
    const uint8_t *block;         /* its scales and codes */
    const int8_t *q;              /* activations, a row's halves one after another, `stride` bytes apart */
    int64_t stride, blocks;
    const int16_t *sides; /* of row 0 */
    rb scales[4];
    rf d[DOT_TILE], acc[DOT_TILE];           /* d * da of each row */
    ri sum[2 * DOT_TILE], less[DOT_TILE];    /* of the run: both halves (or only the first, which holds both), and what the offset takes */
} block256_state;

/* The end of a run, or not: `end` depths of sub-blocks 4h ... are done. */
TEMPLATE void block256_run(const block256 f, block256_state *s, const int joined, const int n, int h, const int end) {
    if (f.run <= 4 * f.sub ? end % f.run : end < 4 * f.sub || (h + 1) * end % f.run) return;
    UNROLL(t, n) {
        ri all = joined ? s->sum[2 * t] : ri_sub(ri_join(s->sum[2 * t], s->sum[2 * t + 1]), s->less[t]);
        s->acc[t] = rf_fma(rf_from_ri(all), s->d[t], s->acc[t]);
        s->sum[2 * t] = s->sum[2 * t + 1] = s->less[t] = ri_zero();
    }
}

/* Sub-blocks 4h to 4h + 3. */
TEMPLATE void block256_four_subs(const block256 f, block256_state *s, const int n, const int h) {
    const int part = f.run < f.sub ? f.run : f.sub;             /* depths between two chances of a run's end */
    const int offset = f.max > 127 && !RP_WIDE ? f.offset - 128 : f.offset;
    UNROLL(i, 4) {
        block256_read_ahead(f, s->block, h, i, 4);
        UNROLL(e, f.sub / part) {
            const int at = (4 * h + i) * f.sub + e * part; /* of the block */
            block256_codes(f, s->block, s->scales, h, i, e * part / 4, (e + 1) * part / 4, s->q + 4 * h * f.sub, s->stride, n, s->sum);
            if (offset) {
                ri scale = ri_mul(ri_byte_i8(s->scales[h], i), ri_set1(offset));
                UNROLL(t, n)
                    s->less[t] = ri_add(s->less[t], ri_mul(scale, ri_set1(side_sum(s->sides + t * s->blocks * RASE_SIDES, at / 16, part))));
            }
            block256_run(f, s, 0, n, h, i * f.sub + (e + 1) * part);
        }
    }
}

#if RP_INT32
/* Of activation row t: the sums from depth `at` of the four sub-blocks on, of 16 or 32. */
#define BLOCK256_SIDES(t) \
    (s->sides + (t) * s->blocks * RASE_SIDES + (4 * h * f.sub + at) / 16 * (part == 16 ? 2 : 1) + (part == 16 ? 0 : 32))
/* The same where dot products are int32 from the start: offset and halves go before the scale, which spares one multiplication a row
 * and the offset's own sum. Parts side by side, so that a dot product seldom waits for the one before it. */
TEMPLATE void block256_joined(const block256 f, block256_state *s, const int n, const int h) {
    const int part = f.run < f.sub ? f.run : f.sub, vectors = part / 4;
    const int parts = 4 * f.sub / part, side = n > 1 ? 1 : 2; /* parts in all; side by side */
    const int8_t *q = s->q + 4 * h * f.sub;
    UNROLL(first, parts / side) {
        rp dot[4][2 * DOT_TILE];
        UNROLL(j, side) {
            const int at = (first * side + j) * part;
            UNROLL(t, n) {
                dot[j][2 * t] = rp_begin(ri_zero());
                dot[j][2 * t + 1] = rp_begin(f.offset && !f.levels ? ri_dot_rh(ri_zero(), rh_set2(-f.offset, -128 * f.offset), BLOCK256_SIDES(t)) : ri_zero());
            }
        }
        UNROLL(step, vectors) {
            block256_read_ahead(f, s->block, h, first * vectors + step, parts / side * vectors);
            UNROLL(j, side) {
                const int at = (first * side + j) * part, i = at / f.sub, v = at % f.sub / 4 + (part < f.sub ? step : block256_step(f, step));
                rb w = f.levels ? f.levels(s->block, h, i, v) : f.codes(s->block, h, i, v);
                UNROLL(t, 2 * n) dot[j][t] = rp_dot_u8(dot[j][t], w, q + t * s->stride + i * f.sub + 4 * v);
            }
        }
        UNROLL(j, side) {
            const int at = (first * side + j) * part, i = at / f.sub;
#if RB_PERMUTE
            if (f.levels) {
                rh factor, less;
                f.factors(s->block, h, i, &factor, &less);
                UNROLL(t, n) {
                    s->sum[2 * t] = ri_dot_rh(s->sum[2 * t], less, BLOCK256_SIDES(t));
                    s->sum[2 * t] = ri_dot_pairs(s->sum[2 * t], rh_pairs(rp_end(dot[j][2 * t], ri_zero()), rp_end(dot[j][2 * t + 1], ri_zero())), factor);
                }
                block256_run(f, s, 1, n, h, at + part);
                continue;
            }
#endif
            ri scale = f.signed_scales ? ri_byte_i8(s->scales[h], i) : ri_byte_u8(s->scales[h], i);
            UNROLL(t, n) {
                ri all = ri_join(rp_end(dot[j][2 * t], ri_zero()), rp_end(dot[j][2 * t + 1], ri_zero()));
                s->sum[2 * t] = ri_add(s->sum[2 * t], ri_mul(all, scale));
            }
            block256_run(f, s, 1, n, h, at + part);
        }
    }
}
#define BLOCK256_FOUR_SUBS(f, s, n, h)                                   \
    if ((f).max > 127 && !RP_WIDE) block256_four_subs(f, s, n, h);       \
    else block256_joined(f, s, n, h);
#else
#define BLOCK256_FOUR_SUBS(f, s, n, h) block256_four_subs(f, s, n, h);
#endif

TEMPLATE void block256_tile(const block256 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row,
                            const int n, float *out, int64_t out_stride) {
    const int64_t blocks = cols / 256;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks;
    block256_state s;
    s.blocks = blocks, s.sides = act->sides + row * blocks * RASE_SIDES;
    UNROLL(t, n) s.acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, q += 256, s.sides += RASE_SIDES) {
        const uint16_t *halves = (const uint16_t *)block256_start(f, group, b);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        s.block = block256_rest(f, group, b), s.q = q, s.stride = cols;
        UNROLL(t, 2 * n) s.sum[t] = ri_zero();
        UNROLL(t, n) s.less[t] = ri_zero(), s.d[t] = rf_mul(d, rf_set1(da[t * blocks + b]));
        f.scales(s.block, s.scales);
        BLOCK256_FOURS(f, BLOCK256_FOUR_SUBS(f, &s, n, h))
        if (f.has_minimum) {
            f.minimums(s.block, s.scales);
            UNROLL(t, n) {
                const int16_t *of = s.sides + t * blocks * RASE_SIDES + (f.sub == 16 ? 0 : 32);
                ri side = ri_zero();
                UNROLL(e, 256 / f.sub) side = ri_dot_rh(side, rh_side(s.scales[e / 4], e % 4), of + 2 * e);
                s.acc[t] = rf_fnma(rf_mul(dmin, rf_set1(da[t * blocks + b])), rf_from_ri(side), s.acc[t]);
            }
        }
    }
    UNROLL(t, n) rf_store(out + t * out_stride, s.acc[t]);
}

#include "block256_many.h"
#include "prepared.h"

TEMPLATE void block256_unpack_subs(const block256 f, const uint8_t *block, const uint8_t *expanded, const rb *scales, const rb *minimums, rf d, rf dmin, int h,
                                   weight_put put, weight_sink *to) {
    UNROLL(i, 4) {
        rf scale = rf_mul(d, rf_from_ri(f.signed_scales ? ri_byte_i8(scales[h], i) : ri_byte_u8(scales[h], i)));
        rf less = rf_set1(-0.0f);
        if (f.has_minimum) less = rf_sub(less, rf_mul(dmin, rf_from_ri(ri_byte_u8(minimums[h], i))));
        block256_read_ahead(f, block, h, i, 4);
        UNROLL(v, f.sub / 4) {
            rb w = block256_code(f, block, expanded, h, i, v);
            rf code[4];
            rf_codes(w, f.max, f.offset, code);
            UNROLL(e, 4) put(to, f.has_minimum ? rf_fma(scale, code[e], less) : rf_mul(scale, code[e]), i * f.sub + 4 * v + e);
        }
    }
}
/* (d * scale) * (code - offset), then - dmin * minimum, each operation rounded: the order of the format's definition. With a
 * minimum the products are exact (11 + 6 + 5 bits), so that one FMA rounds as the subtraction does. */
TEMPLATE void block256_unpack(const block256 f, const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {
    for (int64_t b = k0 / 256; b < k1 / 256; b++) {
        const uint16_t *halves = (const uint16_t *)block256_start(f, group, b);
        const uint8_t *block = block256_rest(f, group, b);
        rf d = block256_d(f, halves), dmin = f.has_minimum ? rf_from_f16(halves + RASE_R) : rf_zero();
        rb scales[4], minimums[4];
        f.scales(block, scales);
        if (f.has_minimum) f.minimums(block, minimums);
        BLOCK256_EXPANDED;
        if (f.expand) f.expand(block, expanded);
        for (int h = 0; h < 64 / f.sub; h++) block256_unpack_subs(f, block, expanded, scales, minimums, d, dmin, h, put, to);
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

#define BLOCK256_FORMAT(NAME, ID) BLOCK256_FORMAT_IN_ROWS(NAME, ID, NULL)
#define BLOCK256_FORMAT_IN_ROWS(NAME, ID, IN_ROWS)                                                                      \
    static size_t NAME##_group_bytes(int64_t cols) { return round_64((size_t)(cols / 256) * block256_bytes(NAME)); }    \
    static void NAME##_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {             \
        memset(group, 0, NAME##_group_bytes(cols));                                                                     \
        for (int64_t b = 0; b < cols / 256; b++)                                                                        \
            src += NAME##_pack_block(src, row_bytes, rows, block256_start(NAME, group, b), block256_rest(NAME, group, b)); \
    }                                                                                                                   \
    TEMPLATE void NAME##_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {        \
        block256_unpack(NAME, group, k0, k1, put, to);                                                                  \
    }                                                                                                                   \
    TEMPLATE void NAME##_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n,        \
                              float *out, int64_t out_stride) {                                                         \
        block256_tile(NAME, group, cols, act, row, n, out, out_stride);                                                 \
    }                                                                                                                   \
    PREPARED(NAME)                                                                                                      \
    BLOCK256_ROWS(NAME) BLOCK256_WIDE(NAME)                                                                                                 \
    QUANTISED_FORMAT_IN_ROWS(NAME, ID, 256, RASE_ACT_Q16_256, NAME.run, NAME.has_minimum ? 256 / NAME.sub : 0, \
                             block256_bytes(NAME), IN_ROWS, NAME##_few)

#endif
