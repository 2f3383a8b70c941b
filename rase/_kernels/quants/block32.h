/* The legacy formats and their like: blocks of 32 weights with one scale and, in two of them, one float16 minimum (rule R2).
 *
 * Per block and half of the activations: sum = sum of code * activation, less offset * activation sum, exact in int32:
 * |sum| <= 32 * 31 * 127 + 16 * 4064 < 2^18 (Q8_0, IQ4_NL: 32 * 255 * 127 < 2^21). Then acc = fma(254 * high + low, d * da,
 * acc), the integer exact (below 2^28), and with a minimum acc = fma(m, dsums, acc); float32, blocks ascending. */
#ifndef RASE_QUANTS_BLOCK32_H
#define RASE_QUANTS_BLOCK32_H

#include "common.h"

/* Weight vector v (depths 4v to 4v + 3) of a block as codes 0..max. */
typedef rb block32_codes(const uint8_t *codes, int v);

/* What a block starts with: a float16 scale, that and a float16 minimum, or one byte, an E8M0 exponent. */
enum { BLOCK32_SCALE = 0, BLOCK32_SCALE_MINIMUM = 1, BLOCK32_EXPONENT = 2 };

/* Bytes of the start of one row's block, and of one block of R rows. */
TEMPLATE int block32_head(int head) { return head == BLOCK32_EXPONENT ? 1 : 2 + 2 * head; }
TEMPLATE size_t block32_bytes(int code_bytes, int head) { return (size_t)(code_bytes + block32_head(head)) * RASE_R; }
TEMPLATE rf block32_d(const uint8_t *block, int head) {
    return head == BLOCK32_EXPONENT ? rf_from_e8m0(block) : rf_from_f16((const uint16_t *)block);
}
TEMPLATE rf block32_minimum(const uint8_t *block, int head) {
    return head == BLOCK32_SCALE_MINIMUM ? rf_from_f16((const uint16_t *)block + RASE_R) : rf_zero();
}

TEMPLATE void block32_tile(const uint8_t *group, int64_t cols, int code_bytes, int max, int offset, int head,
                           block32_codes weights, const rase_act *act, int64_t row, const int n, float *out,
                           int64_t out_stride) {
    const int has_minimum = head == BLOCK32_SCALE_MINIMUM;
    const int is_signed = max > 127 && !RP_WIDE; /* then the codes become code - 128, and no offset is left */
    const int64_t blocks = cols / 32;
    const int8_t *q = act->q + 2 * row * cols;
    const float *da = act->d + row * blocks, *dsums = act->dsums + row * blocks;
    const int32_t *sums = act->sums + 2 * row * blocks;
    rf acc[DOT_TILE];
    UNROLL(t, n) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += block32_bytes(code_bytes, head), q += 32) {
        const uint8_t *codes = group + block32_head(head) * RASE_R;
        read_ahead(group, (int)(block32_bytes(code_bytes, head) + 63) / 64);
        rf d = block32_d(group, head), minimum = block32_minimum(group, head);
        ri sum[2 * DOT_TILE];
        rp dot[2 * DOT_TILE];
        rq wide[2 * DOT_TILE];
        UNROLL(t, 2 * n) {
            sum[t] = offset ? ri_set1(-offset * sums[t * blocks + b]) : ri_zero();
            dot[t] = rp_begin(sum[t]);
            wide[t] = rq_begin(sums[t * blocks + b]);
        }
        UNROLL(step, 8) {
            const int v = (step & 1) * 4 + step / 2; /* both halves of a nibble vector in turn: one load serves two */
            rb w = weights(codes, v);
            if (is_signed) UNROLL(t, 2 * n) wide[t] = rq_dot_s8(wide[t], rb_xor(w, rb_set1(128)), q + t * cols + 4 * v);
            else UNROLL(t, 2 * n) dot[t] = rp_dot_u8(dot[t], w, q + t * cols + 4 * v);
            if (!is_signed && step == 3 && RP_CALLS(max) < 8) {
                UNROLL(t, 2 * n) {
                    sum[t] = rp_end(dot[t], sum[t]);
                    dot[t] = rp_begin(ri_zero());
                }
            }
        }
        UNROLL(t, n) {
            ri high = is_signed ? rq_end(wide[2 * t]) : rp_end(dot[2 * t], sum[2 * t]);
            ri low = is_signed ? rq_end(wide[2 * t + 1]) : rp_end(dot[2 * t + 1], sum[2 * t + 1]);
            acc[t] = join_exact(acc[t], high, low, d, da[t * blocks + b]);
            if (has_minimum) acc[t] = rf_fma(minimum, rf_set1(dsums[t * blocks + b]), acc[t]);
        }
    }
    UNROLL(t, n) rf_store(out + t * out_stride, acc[t]);
}

/* d * (code - offset), then + minimum, each rounded: the order of the file format's definition. */
TEMPLATE void block32_unpack(const uint8_t *group, int64_t k0, int64_t k1, int code_bytes, int max, int offset, int head,
                             block32_codes weights, weight_put put, weight_sink *to) {
    for (int64_t b = k0 / 32; b < k1 / 32; b++) {
        const uint8_t *block = group + (size_t)b * block32_bytes(code_bytes, head);
        const uint8_t *codes = block + block32_head(head) * RASE_R;
        rf d = block32_d(block, head), minimum = block32_minimum(block, head);
        read_ahead(block, (int)(block32_bytes(code_bytes, head) + 63) / 64);
        UNROLL(v, 8) {
            rf code[4];
            rf_codes(weights(codes, v), max, offset, code);
            UNROLL(i, 4) {
                rf x = rf_mul(d, code[i]);
                put(to, head == BLOCK32_SCALE_MINIMUM ? rf_add(x, minimum) : x, 4 * v + i);
            }
        }
    }
}

#ifdef RASE_WIDE_GROUPS
/* Blocks to a panel of wide.h. */
TEMPLATE void block32_wide(const uint8_t *block, int count, int code_bytes, int offset, int head, block32_codes weights,
                           wide_panel *panel) {
    int16_t *to = panel->weights;
    for (int b = 0; b < count; b++, block += block32_bytes(code_bytes, head)) {
        const uint8_t *codes = block + block32_head(head) * RASE_R;
        rf_store(panel->d + b * RASE_R, block32_d(block, head));
        rf_store(panel->minimum + b * RASE_R, block32_minimum(block, head));
        UNROLL(v, 8) {
            rb w = weights(codes, v);
            rh even = rh_even_u8(w), odd = rh_odd_u8(w), less = rh_set1((int16_t)offset);
            rh_store(to, offset ? rh_sub(even, less) : even);
            rh_store(to + 2 * RASE_R, offset ? rh_sub(odd, less) : odd);
            to += 4 * RASE_R;
        }
    }
}
#define BLOCK32_WIDE(NAME, CODE_BYTES, OFFSET, HEAD, WEIGHTS)                                                         \
    static void NAME##_wide(const uint8_t *blocks, int count, wide_panel *panel) {               \
        block32_wide(blocks, count, (CODE_BYTES), (OFFSET), (HEAD), WEIGHTS, panel);             \
    }
#else
#define BLOCK32_WIDE(NAME, CODE_BYTES, OFFSET, HEAD, WEIGHTS)
#endif

#ifdef RASE_FOUR_ROWS
/* Four rows of activations, from `row` on: sums (4, R). */
TEMPLATE void block32_four(const uint8_t *group, int64_t cols, int code_bytes, int offset, int head, block32_codes weights,
                           const rase_act *act, int64_t row, float *sums) {
    const int64_t blocks = cols / 32;
    const float *da = act->d + row * blocks, *dsums = act->dsums + row * blocks;
    rf acc[4];
    UNROLL(t, 4) acc[t] = rf_zero();
    for (int64_t b = 0; b < blocks; b++, group += block32_bytes(code_bytes, head)) {
        const uint8_t *codes = group + block32_head(head) * RASE_R;
        const int16_t *a = wide_at(act, cols, row, 32 * b);
        read_ahead(group, (int)(block32_bytes(code_bytes, head) + 63) / 64);
        rf d = block32_d(group, head), minimum = block32_minimum(group, head);
        rh less = rh_set1((int16_t)offset);
        ri sum[8];
        UNROLL(t, 8) sum[t] = ri_zero();
        UNROLL(step, 8) {
            const int v = (step & 1) * 4 + step / 2;
            rb w = weights(codes, v);
            rh even = rh_even_u8(w), odd = rh_odd_u8(w);
            four_dots(sum, offset ? rh_sub(even, less) : even, offset ? rh_sub(odd, less) : odd, a + 4 * v);
        }
        UNROLL(t, 4) {
            acc[t] = rf_fma(rf_from_ri(ri_add(sum[t], sum[4 + t])), rf_mul(d, rf_set1(da[t * blocks + b])), acc[t]);
            if (head == BLOCK32_SCALE_MINIMUM) acc[t] = rf_fma(minimum, rf_set1(dsums[t * blocks + b]), acc[t]);
        }
    }
    UNROLL(t, 4) rf_store(sums + t * RASE_R, acc[t]);
}
#define BLOCK32_FOUR(NAME, CODE_BYTES, OFFSET, HEAD, WEIGHTS) \
    static void NAME##_four(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, float *sums) {      \
        block32_four(group, cols, (CODE_BYTES), (OFFSET), (HEAD), WEIGHTS, act, row, sums);                           \
    }
#else
#define BLOCK32_FOUR(NAME, CODE_BYTES, OFFSET, HEAD, WEIGHTS)
#endif

/* File block: halves, [4 bytes of fifth bits,] 16 bytes of nibbles: weight j low, weight j + 16 high. Nibbles are copied; the
 * fifth bits of a row, bit 4v + i for weight 4v + i, become bit v of byte i. */
TEMPLATE void block32_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group, int head,
                           int code_bytes) {
    const int has_fifth = code_bytes == 20, start = block32_head(head);
    for (int64_t b = 0; b < cols / 32; b++, src += start + code_bytes) {
        uint8_t *codes = group + start * RASE_R;
        if (head == BLOCK32_EXPONENT) pack_bytes(src, row_bytes, rows, group);
        else pack_halves(src, row_bytes, rows, 1 + head, group);
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
TEMPLATE rb five_bits(const uint8_t *codes, int v) {
    return rb_or(four_bits(codes + VECTOR, v), move_bits(rb_load(codes), v, 4, 0x10));
}

#define BLOCK32_FORMAT(NAME, ID, CODE_BYTES, MAX, OFFSET, HEAD, WEIGHTS)                                          \
    static size_t NAME##_group_bytes(int64_t cols) {                                                                     \
        return round_64((size_t)(cols / 32) * block32_bytes((CODE_BYTES), (HEAD)));                                \
    }                                                                                                                    \
    static void NAME##_pack(const uint8_t *src, size_t row_bytes, int rows, int64_t cols, uint8_t *group) {              \
        block32_pack(src, row_bytes, rows, cols, group, (HEAD), (CODE_BYTES));                                \
    }                                                                                                                    \
    TEMPLATE void NAME##_unpack(const uint8_t *group, int64_t k0, int64_t k1, weight_put put, weight_sink *to) {         \
        block32_unpack(group, k0, k1, (CODE_BYTES), (MAX), (OFFSET), (HEAD), WEIGHTS, put, to);                                 \
    }                                                                                                                    \
    TEMPLATE void NAME##_tile(const uint8_t *group, int64_t cols, const rase_act *act, int64_t row, const int n,         \
                              float *out, int64_t out_stride) {                                                          \
        block32_tile(group, cols, (CODE_BYTES), (MAX), (OFFSET), (HEAD), WEIGHTS, act, row, n, out, out_stride);  \
    }                                                                                                                    \
    BLOCK32_FOUR(NAME, CODE_BYTES, OFFSET, HEAD, WEIGHTS)                                                                \
    BLOCK32_WIDE(NAME, CODE_BYTES, OFFSET, HEAD, WEIGHTS)                                                                \
    QUANTISED_FORMAT(NAME, ID, 32, RASE_ACT_Q16_32, 32, (HEAD) == BLOCK32_SCALE_MINIMUM,                                 \
                     (size_t)((CODE_BYTES) + ((HEAD) == BLOCK32_EXPONENT ? 1 : 2 + 2 * (HEAD))) * RASE_R)

#endif
