/* The legacy formats and their like: blocks of 32 weights with one scale and, in two of them, one float16 minimum (rule R2).
 *
 * Per block and half of the activations: sum = sum of code * activation, less offset * activation sum, exact in int32:
 * |sum| <= 32 * 31 * 127 + 16 * 4064 < 2^18 (Q8_0, IQ4_NL: 32 * 255 * 127 < 2^21). Then acc = fma(254 * high + low, d * da,
 * acc), the integer exact (below 2^28), and with a minimum acc = fma(m, dsums, acc); float32, blocks ascending. */
#ifndef RASE_QUANTS_BLOCK32_H
#define RASE_QUANTS_BLOCK32_H

#include "common.h"

/* What a block starts with: a float16 scale; that and a float16 minimum; one byte, an E8M0 exponent; a scale and a zero point, whose
 * minimum is -(d * zero). */
enum { BLOCK32_SCALE = 0, BLOCK32_MINIMUM = 1, BLOCK32_EXPONENT = 2, BLOCK32_ZERO = 3 };

/* One format. Constant in every use, so that the templates become straight code. */
typedef struct {
    int code_bytes; /* of one row's 32 codes */
    int max;        /* largest code */
    int offset;     /* what the file subtracts from a code */
    int head;
    int share;                               /* so many times 32 weights follow one head */
    rb (*codes)(const uint8_t *codes, int v); /* weight vector v (depths 4v to 4v + 3) of 32 */
} block32;

/* Bytes of one row's head, and of one packed block of R rows. */
TEMPLATE int block32_head(int head) { return head == BLOCK32_EXPONENT ? 1 : head == BLOCK32_SCALE ? 2 : 4; }
TEMPLATE size_t block32_bytes(const block32 f) { return (size_t)(f.share * f.code_bytes + block32_head(f.head)) * RASE_R; }
TEMPLATE int block32_has_minimum(const block32 f) { return f.head == BLOCK32_MINIMUM || f.head == BLOCK32_ZERO; }
TEMPLATE rf block32_d(const block32 f, const uint8_t *block) {
    return f.head == BLOCK32_EXPONENT ? rf_from_e8m0(block) : rf_from_f16((const uint16_t *)block);
}
TEMPLATE rf block32_minimum(const block32 f, const uint8_t *block, rf d) {
    if (!block32_has_minimum(f)) return rf_zero();
    rf second = rf_from_f16((const uint16_t *)block + RASE_R);
    return f.head == BLOCK32_ZERO ? rf_mul(d, rf_sub(rf_set1(-0.0f), second)) : second;
}

/* Activations of n rows times 32 codes, number s of packed block `block`; d, minimum: of the weights. */
TEMPLATE void block32_codes(const block32 f, const uint8_t *block, const int s, rf d, rf minimum, const rase_act *act, int64_t row,
                            int64_t cols, int64_t b, const int n, rf *acc) {
    const uint8_t *codes = block + (block32_head(f.head) + s * f.code_bytes) * RASE_R;
    const int lines = (int)(block32_bytes(f) + 63) / 64, steps = 8 * f.share;
    const int is_signed = f.max > 127 && !RP_WIDE; /* then the codes become code - 128, and no offset is left */
    const int64_t blocks = cols / 32;
    const int8_t *q = act->q + 2 * row * cols + 32 * b;
    const float *da = act->d + row * blocks + b, *dsums = act->dsums + row * blocks + b;
    const int32_t *sums = act->sums + 2 * row * blocks + b;
    ri sum[2 * DOT_TILE];
    rp dot[2 * DOT_TILE];
    rq wide[2 * DOT_TILE];
    UNROLL(t, 2 * n) {
        sum[t] = f.offset ? ri_set1(-f.offset * sums[t * blocks]) : ri_zero();
        dot[t] = rp_begin(sum[t]);
        wide[t] = rq_begin(sums[t * blocks]);
    }
    UNROLL(step, 8) {
        const int v = (step & 1) * 4 + step / 2; /* both halves of a nibble vector in turn: one load serves two */
        const int at = 8 * s + step, first = (at * lines + steps - 1) / steps, count = ((at + 1) * lines + steps - 1) / steps - first;
        if (count) read_ahead(block + 64 * first, count); /* in small portions */
        rb w = f.codes(codes, v);
        if (is_signed) UNROLL(t, 2 * n) wide[t] = rq_dot_s8(wide[t], rb_xor(w, rb_set1(128)), q + t * cols + 4 * v);
        else UNROLL(t, 2 * n) dot[t] = rp_dot_u8(dot[t], w, q + t * cols + 4 * v);
        if (!is_signed && step == 3 && RP_CALLS(f.max) < 8) {
            UNROLL(t, 2 * n) {
                sum[t] = rp_end(dot[t], sum[t]);
                dot[t] = rp_begin(ri_zero());
            }
        }
    }
    UNROLL(t, n) {
        ri high = is_signed ? rq_end(wide[2 * t]) : rp_end(dot[2 * t], sum[2 * t]);
        ri low = is_signed ? rq_end(wide[2 * t + 1]) : rp_end(dot[2 * t + 1], sum[2 * t + 1]);
        acc[t] = join_exact(acc[t], high, low, d, da[t * blocks]);
        if (block32_has_minimum(f)) acc[t] = rf_fma(minimum, rf_set1(dsums[t * blocks]), acc[t]);
    }
}

TEMPLATE void block32_tile(const block32 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n, float *out,
                           int64_t out_stride) {
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < cols / 32; b += f.share, group += block32_bytes(f)) {
        rf d = block32_d(f, group), minimum = block32_minimum(f, group, d);
        UNROLL(s, f.share) block32_codes(f, group, s, d, minimum, act, row, cols, b + s, n, acc);
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

/* d * (code - offset), then + minimum, each rounded: the order of the file format's definition. */
TEMPLATE void block32_unpack(const block32 f, const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {
    const uint8_t *block = group + (size_t)(k0 / (32 * f.share)) * block32_bytes(f);
    for (; k0 < k1; k0 += 32 * f.share, block += block32_bytes(f)) {
        rf d = block32_d(f, block), minimum = block32_minimum(f, block, d);
        read_ahead(block, (int)(block32_bytes(f) + 63) / 64);
        UNROLL(s, f.share) {
            UNROLL(v, 8) {
                rf code[4];
                rf_codes(f.codes(block + (block32_head(f.head) + s * f.code_bytes) * RASE_R, v), f.max, f.offset, code);
                UNROLL(i, 4) {
                    rf x = rf_mul(d, code[i]);
                    put(to, block32_has_minimum(f) ? rf_add(x, minimum) : x, 4 * v + i);
                }
            }
        }
    }
}

#ifdef RASE_WIDE_GROUPS
/* Blocks to a panel of wide.h. */
TEMPLATE void block32_wide(const block32 f, const uint8_t *block, int count, wide_panel *panel) {
    int16_t *to = panel->weights;
    for (int b = 0; b < count; b++, block += block32_bytes(f)) {
        rf d = block32_d(f, block), minimum = block32_minimum(f, block, d);
        UNROLL(s, f.share) {
            const uint8_t *codes = block + (block32_head(f.head) + s * f.code_bytes) * RASE_R;
            rf_store(panel->d + (b * f.share + s) * RASE_R, d);
            rf_store(panel->minimum + (b * f.share + s) * RASE_R, minimum);
            UNROLL(v, 8) {
                rb w = f.codes(codes, v);
                rh even = rh_even_u8(w), odd = rh_odd_u8(w), less = rh_set1((int16_t)f.offset);
                rh_store(to, f.offset ? rh_sub(even, less) : even);
                rh_store(to + 2 * RASE_R, f.offset ? rh_sub(odd, less) : odd);
                to += 4 * RASE_R;
            }
        }
    }
}
#define BLOCK32_WIDE(NAME)                                                                        \
    static void NAME##_wide(const uint8_t *group, int64_t first, int count, wide_panel *panel) {  \
        block32_wide(NAME, group + (size_t)first * block32_bytes(NAME), count, panel);            \
    }
#else
#define BLOCK32_WIDE(NAME)
#endif

#ifdef RASE_FOUR_ROWS
/* n (4 or 8) rows of activations, from `row` on: sums (n, R). */
TEMPLATE void block32_rows(const block32 f, const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums,
                           const int n) {
    const int64_t blocks = cols / 32;
    const float *da = act->d + row * blocks, *dsums = act->dsums + row * blocks;
    rf acc[8];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t first = 0; first < blocks; first += f.share, group += block32_bytes(f)) {
        read_ahead_of_rows(group, (int)(block32_bytes(f) + 63) / 64);
        rf d = block32_d(f, group), minimum = block32_minimum(f, group, d);
        rh less = rh_set1((int16_t)f.offset);
        UNROLL(s, f.share) {
            const uint8_t *codes = group + (block32_head(f.head) + s * f.code_bytes) * RASE_R;
            const int64_t b = first + s;
            const int16_t *fours[2] = {wide_at(act, cols, row, 32 * b), wide_at(act, cols, row + 4, 32 * b)};
            KEEP_POINTERS(fours)
            ri sum[16];
            UNROLL(t, 2 * n) sum[t] = ri_zero();
            UNROLL(step, 8) {
                const int v = (step & 1) * 4 + step / 2;
                rb w = f.codes(codes, v);
                rh even = rh_even_u8(w), odd = rh_odd_u8(w);
                rows_dots(sum, f.offset ? rh_sub(even, less) : even, f.offset ? rh_sub(odd, less) : odd, fours, 4 * v, n, 32);
            }
            UNROLL(t, n) {
                acc[t] = rf_fma(rf_from_ri(rows_sum(sum, t, n, 32)), rf_mul(d, rf_set1(da[t * blocks + b])), acc[t]);
                if (block32_has_minimum(f)) acc[t] = rf_fma(minimum, rf_set1(dsums[t * blocks + b]), acc[t]);
            }
        }
    }
    UNROLL(t, n) rf_store(sums + t * RASE_R, acc[t]);
}
#define BLOCK32_ROWS(NAME) \
    ROWS_OF(NAME, block32_rows(NAME, group, cols, act, row, sums, 4), block32_rows(NAME, group, cols, act, row, sums, 8), )
#else
#define BLOCK32_ROWS(NAME)
#endif

/* File block: halves, [4 bytes of fifth bits,] 16 bytes of nibbles: weight j low, weight j + 16 high. Nibbles are copied; the
 * fifth bits of a row, bit 4v + i for weight 4v + i, become bit v of byte i. */
TEMPLATE void block32_pack(const block32 f, const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {
    const int code_bytes = f.code_bytes, has_fifth = code_bytes == 20, start = block32_head(f.head);
    for (int64_t b = 0; b < cols / 32; b++, src += start + code_bytes) {
        uint8_t *codes = group + start * RASE_R;
        if (f.head == BLOCK32_EXPONENT) pack_bytes(src, row_bytes, rows, group);
        else pack_halves(src, row_bytes, rows, start / 2, group);
        pack_words(src + start, row_bytes, rows, code_bytes / 4, codes);
        if (has_fifth) {
            for (int r = 0; r < RASE_R; r++) {
                uint32_t x, y;
                memcpy(&x, codes + 4 * r, 4);
                for (int turn = 0; turn < 2; turn++) { /* even bits down, odd bits up; twice moves bit 4v + i to 8i + v */
                    y = (x ^ x >> 1) & 0x22222222u, x ^= y ^ y << 1;
                    y = (x ^ x >> 2) & 0x0c0c0c0cu, x ^= y ^ y << 2;
                    y = (x ^ x >> 4) & 0x00f000f0u, x ^= y ^ y << 4;
                    y = (x ^ x >> 8) & 0x0000ff00u, x ^= y ^ y << 8;
                }
                memcpy(codes + 4 * r, &x, 4);
            }
        }
        group = codes + code_bytes * RASE_R;
    }
    memset(group, 0, -(uintptr_t)group & 63);
}

/* Codes of the nibble formats, without and with a plane of fifth bits before the nibbles. */
TEMPLATE rb four_bits(const uint8_t *codes, int v) { return nibbles(rb_load(codes + (v & 3) * VECTOR), v / 4); }
/* values[code] of these, 16 values. */
TEMPLATE rb four_bit_values(const uint8_t *values, const uint8_t *codes, int v) {
#if RB_PERMUTE
    rb x = rb_load(codes + (v & 3) * VECTOR);
    return rb_lookup_16(values, v / 4 ? rb_shr(x, 4) : x);
#else
    return rb_lookup(values, four_bits(codes, v));
#endif
}
TEMPLATE rb five_bits(const uint8_t *codes, int v) {
    return rb_or(four_bits(codes + VECTOR, v), move_bits(rb_load(codes), v, 4, 0x10));
}

/* All but NAME_pack of a format that `static const block32 NAME` describes. */
#define BLOCK32_KERNELS(NAME, ID, BLOCK)                                                                                 \
    static size_t NAME##_group_bytes(int64_t cols) { return round_64((size_t)(cols / (BLOCK)) * block32_bytes(NAME)); }  \
    TEMPLATE void NAME##_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {         \
        block32_unpack(NAME, group, k0, k1, put, to);                                                                    \
    }                                                                                                                    \
    TEMPLATE void NAME##_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n,         \
                              float *out, int64_t out_stride) {                                                          \
        block32_tile(NAME, group, cols, act, row, n, out, out_stride);                                                   \
    }                                                                                                                    \
    BLOCK32_ROWS(NAME) BLOCK32_WIDE(NAME)                                                                                \
    QUANTISED_FORMAT(NAME, ID, BLOCK, RASE_ACT_Q16_32, 32, block32_has_minimum(NAME), block32_bytes(NAME))
#define BLOCK32_FORMAT(NAME, ID)                                                                                         \
    static void NAME##_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {              \
        block32_pack(NAME, src, row_bytes, rows, cols, group);                                                           \
    }                                                                                                                    \
    BLOCK32_KERNELS(NAME, ID, 32)

#endif
